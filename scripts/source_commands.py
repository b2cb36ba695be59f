"""The compile commands of our sources, one each. Builds compile several as one (aerie_join_sources() of cmake/AerieTargets.cmake), and
compile_commands.json names the files that join them; tools that look at a source need a command of its own."""
import json
import os
import re


def load(build):
    """The entries of <build>/compile_commands.json, those of joined files replaced by one for each source."""
    with open(os.path.join(build, 'compile_commands.json')) as file:
        entries = json.load(file)
    out = []
    for entry in entries:
        entry['command'] = re.sub(r' --param=\S+', '', entry['command'])  # gcc's own; the tools are clang's
        if not re.fullmatch(r'joined_\w+\.cc', os.path.basename(entry['file'])):
            out.append(entry)
            continue
        with open(entry['file']) as file:
            parts = re.findall(r'^#include "(.*)"$', file.read(), re.M)
        command = entry['command'].replace(' -Wno-subobject-linkage', '')  # for gcc, and for joined files alone
        folders = re.findall(r' -I(\S+)', command)
        for part in parts:
            path = next(f for f in (os.path.join(folder, part) for folder in folders) if os.path.isfile(f))
            out.append({'directory': entry['directory'], 'file': path, 'command': command.replace(entry['file'], path)})
    return out


def write(build, folder):
    """Writes compile_commands.json of all sources into `folder`, for tools that read one. Returns its entries."""
    entries = load(build)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'compile_commands.json'), 'w') as file:
        json.dump(entries, file)
    return entries
