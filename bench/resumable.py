"""What the proofs for a GPU machine share: work in calls of a few minutes, each of which goes on where the last one ended."""
import json
import os
import subprocess
import time


class OutOfTime(Exception):
    """The call has to end; the next one with the same folder goes on."""


class Failed(Exception):
    """A command failed; what else there is to do need not."""


class Resumable:
    """Results in a file of the folder `out`, replaced as a whole, and what is left of the time of this call."""

    def __init__(self, out, file, seconds, state=None):
        self.out, self.until = os.path.abspath(out), time.time() + seconds
        os.makedirs(self.out, exist_ok=True)
        self.file = os.path.join(self.out, file)
        self.state = state if state is not None else {}
        if os.path.exists(self.file):
            with open(self.file) as f:
                self.state = json.load(f)

    def save(self):
        with open(self.file + '.new', 'w') as f:
            json.dump(self.state, f, indent=1)
        os.replace(self.file + '.new', self.file)

    def left(self, least=15):
        """Seconds; raises where they are fewer than `least`."""
        seconds = self.until - time.time()
        if seconds < least:
            raise OutOfTime
        return seconds

    def limited(self, *command, reserve=0, least=15, **more):
        """Runs a command to its end, its output taken as text. Without time for that it is told to end, so that a run saves, and killed after `reserve` seconds."""
        seconds = self.left(least + reserve) - reserve
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8', errors='replace', **more) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.communicate(timeout=reserve)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                raise OutOfTime from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def succeed(self, *command, **more):
        """As limited(); a command that fails raises with its last words."""
        done = self.limited(*command, **more)
        if done.returncode != 0:
            print(f'exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}', flush=True)
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Failed(f"{' '.join(os.path.basename(c) for c in command[:2])}: exit code {done.returncode}: {words[-1][-300:] if words else ''}")
        return done
