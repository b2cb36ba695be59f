#!/usr/bin/env python3
"""Makes the archives and tables of tar_test.cc with Python's tarfile and the packages braceexpand and webdataset.

Run in this folder."""
import bz2, gzip, io, json, lzma, tarfile
import braceexpand
from webdataset.tariterators import base_plus_ext

LONG = "d" * 60 + "/" + "e" * 60 + "/" + "f" * 80 + ".wav"
HUGE = "x" * 300 + ".wav"
members = [("a.wav", b"A" * 700), ("dir/b.flac", b"B" * 512), ("empty.wav", b""), (LONG, b"L" * 10), (HUGE, b"H" * 1025),
           ("umlaut-\u00fc.wav", b"U" * 3)]


def make(fmt, directory=False, mtime=0.0, names=members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt) as tar:
        if directory:
            info = tarfile.TarInfo("dir")
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        for name, data in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = mtime
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


ustar_members = [m for m in members if len(m[0]) < 250 and "\u00fc" not in m[0]]
files = {
    "gnu.tar": make(tarfile.GNU_FORMAT, directory=True),
    "pax.tar": make(tarfile.PAX_FORMAT, directory=True, mtime=1.5),
    "ustar.tar": make(tarfile.USTAR_FORMAT, names=ustar_members),
}
files["pax.tar.gz"] = gzip.compress(files["pax.tar"], mtime=0)
cut = 4096  # two gzip members in one file, as pigz and cat make them
files["two_members.tar.gz"] = gzip.compress(files["pax.tar"][:cut], mtime=0) + gzip.compress(files["pax.tar"][cut:], mtime=0)
files["pax.tar.bz2"] = bz2.compress(files["pax.tar"])
files["pax.tar.xz"] = lzma.compress(files["pax.tar"])
for name, data in files.items():
    open(name, "wb").write(data)
json.dump([[n, len(d), chr(d[0]) if d else ""] for n, d in members], open("members.json", "w"))

patterns = ["a.tar", "audio_{0..3}.tar", "audio_{00..11}.tar", "{3..1}", "{-2..2}", "{1..10..3}", "{10..1..4}", "{a..e}", "{e..a..2}",
            "{X..c}", "x{a,b}y{1..2}", "{a,b{1..3},c}", "{a,}", "{,a}", "{}", "{a}", "a{b}c{d,e}", "{{a,b}}", "{a{b,c}d}", "{1..2}{1..2}",
            "{01..3}", "{1..003}", "{-01..2}", "{0..0}", "{5..5}", "{a,b", "a}", "{1..a}", "{1...3}", "{1..2..}", "{1..3..0}", "{1..7..-2}", "\\{1,2}", "a\\,{x,y}",
            "{a\\,b,c}", "bucket{1..2}/audio_{0..1}.tar", "{_1,2}", "{1,2}{", "", "{{1..2},{3..4}}", "{a,{b,{c,d}}}", "{0..2}.{wav,flac}", "{-0..1}", "{00..0}"]
table = []
for p in patterns:
    for esc in (False, True):
        try:
            table.append([p, esc, list(braceexpand.braceexpand(p, escape=esc))])
        except ValueError:
            table.append([p, esc, None])
json.dump(table, open("braces.json", "w"))

shard = ["a__OP_0..2_CL_.tar", "a_(0..2).tar", "a_[0..2].tar", "a_<0..2>.tar", "b_OP_1..2_CL_/x_{0..1}.tar", "plain.tar", "m_OP_0..1)_x"]
rows = []
for s in shard:
    t = s
    for k in ("(", "[", "<", "_OP_"):
        t = t.replace(k, "{")
    for k in (")", "]", ">", "_CL_"):
        t = t.replace(k, "}")
    rows.append([s, list(braceexpand.braceexpand(t, escape=False))])
json.dump(rows, open("shards.json", "w"))

names = ["a.wav", "a.b.wav", "d/a.wav", "d.x/a.WAV", "d.x/a", "noext", "a..wav", "a.", "d/e/f.seg.FLAC", "-sub1.wav", "a b.wav"]
json.dump([[n, *base_plus_ext(n)] for n in names], open("keys.json", "w"))
