#!/usr/bin/env python3
"""Builds kernels/*.ptx from kernels/*.cu, or with --check compares what is committed.

Needs the two packages of kernels/requirements.txt. The PTX version line is lowered to the ISA that the oldest supported
driver accepts (7.4: R470); ptxas then proves, for every supported GPU generation, that no newer instruction is in use.
"""
import ctypes as C
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ISA = {"compute_70": "7.4"}
TARGETS = [70, 75, 80, 86, 89, 90, 100, 120]
OPTIONS = ["--std=c++14"]


def wheel_file(package, *patterns):
    """A file of an installed NVIDIA wheel."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else []:
        for pattern in patterns:
            found = sorted(pathlib.Path(root, package).glob(pattern))
            if found:
                return str(found[-1])
    sys.exit(f"missing {package}/{patterns[0]}: pip install -r {HERE / 'requirements.txt'}")


def compile_ptx(source, arch):
    C.CDLL(wheel_file("cuda_nvrtc", "lib/libnvrtc-builtins.so*"), mode=C.RTLD_GLOBAL)
    nvrtc = C.CDLL(wheel_file("cuda_nvrtc", "lib/libnvrtc.so*"))
    program, size = C.c_void_p(), C.c_size_t()
    if nvrtc.nvrtcCreateProgram(C.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        sys.exit("nvrtcCreateProgram failed")
    options = [o.encode() for o in [f"--gpu-architecture={arch}", *OPTIONS]]
    if nvrtc.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options)):
        nvrtc.nvrtcGetProgramLogSize(program, C.byref(size))
        log = C.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, C.byref(size))
    text = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return re.sub(r"^\.version .*$", f".version {ISA[arch]}", text.value.decode(), flags=re.M)


def assemble(ptx, arch):
    """Assembles for every target; prints registers and spills for sm_90."""
    ptxas = wheel_file("cuda_nvcc", "bin/ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        for target in (t for t in TARGETS if t >= int(arch.removeprefix("compute_"))):
            run = subprocess.run(
                [ptxas, "-v", f"-arch=sm_{target}", file.name, "-o", "/dev/null"], capture_output=True, text=True
            )
            if run.returncode:
                sys.exit(f"ptxas refuses the PTX for sm_{target}:\n{run.stderr}")
            if target == 90:
                for name, stats in re.findall(r"entry function '(\w+)'.*?(Used \d+ registers)", run.stderr, re.S):
                    print(f"  {name}: {stats} (sm_90)")


def main():
    check, wrong = "--check" in sys.argv[1:], False
    for source in sorted(HERE.glob("*.cu")):
        text = source.read_text()
        arch = re.search(r"//\s*arch:\s*(\w+)", text).group(1)
        ptx, committed = compile_ptx(text, arch), source.with_suffix(".ptx")
        assemble(ptx, arch)
        if not check:
            committed.write_text(ptx)
            print(f"wrote {committed.name}")
        elif committed.exists() and committed.read_text() == ptx:
            print(f"{committed.name} is what {source.name} gives")
        else:
            print(f"{committed.name} DIFFERS from what {source.name} gives: run kernels/build.py and commit")
            wrong = True
    sys.exit(wrong)


main()
