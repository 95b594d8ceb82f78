"""Builds the compiled hot loops, where there is a compiler; everything else stands in pyproject.toml.

EMBEDLOG_LOOPS=compiled makes a failing build an error, EMBEDLOG_LOOPS=plain builds nothing. Without it a
build that fails leaves the package as it is, in plain Python.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

WANTED = os.environ.get("EMBEDLOG_LOOPS", "")
CODEC = "embedlog/codec"
SHARED = [f"{CODEC}/{name}" for name in ("crc32c.h", "fields.h", "parsing.pxd")]

extensions = [
    Extension(
        f"embedlog.codec.{name}",
        [f"{CODEC}/{name}.py"],
        depends=[f"{CODEC}/{name}.pxd", *SHARED],
        extra_compile_args=["-O3"],
        optional=WANTED != "compiled",
    )
    for name in ("compiled_encoding", "compiled_decoding", "compiled_columns", "compiled_scanning")
]

DIRECTIVES = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}

setup(ext_modules=[] if WANTED == "plain" else cythonize(extensions, compiler_directives=DIRECTIVES))
