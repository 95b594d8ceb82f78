"""Builds the compiled hot loops, where there is a compiler; everything else stands in pyproject.toml.

EMBEDLOG_LOOPS=compiled makes a failing build an error, EMBEDLOG_LOOPS=plain builds nothing. Without it a
build that fails leaves the package as it is, in plain Python.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

WANTED = os.environ.get("EMBEDLOG_LOOPS", "")
CODEC = "embedlog/codec"
SHARED = [
    *(f"{CODEC}/{name}" for name in ("crc32c.h", "fields.h", "parsing.pxd", "compiled_encoding.pxd")),
    "embedlog/short_way.h",
]
LOOPS = ("compiled_encoding", "compiled_decoding", "compiled_columns", "compiled_scanning")

extensions = [
    Extension(
        path.replace("/", "."),
        [f"{path}.py"],
        depends=[f"{path}.pxd", *SHARED],
        extra_compile_args=["-O3"],
        optional=WANTED != "compiled",
    )
    for path in (*(f"{CODEC}/{name}" for name in LOOPS), "embedlog/compiled_short_way")
]

DIRECTIVES = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}

setup(ext_modules=[] if WANTED == "plain" else cythonize(extensions, compiler_directives=DIRECTIVES))
