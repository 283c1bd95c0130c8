"""Building and loading the C++ shim: a subclass of PyTorch's pluggable allocator that answers everything its users ask.

It is compiled against the user's own PyTorch when it is first wanted, because PyTorch's C++ interface changes with every minor
release. The result is kept in a folder of the user's, under a name made of everything that went into it; processes that want it at
the same time wait for the one that builds. Where there is no compiler or no header, that is said, and the plain hooks serve.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, List, Optional, Tuple

SOURCES = Path(__file__).parent / "shim"
FILES = ("allocator.cpp", "figures.cpp", "foreign_pools.cpp", "history.cpp", "install.cpp", "pools.cpp")

MISSING = (
    "sharing CUDA tensors between processes (multiprocessing, share_memory)",
    "MemPool(no_split=True) has no effect",
)
"""What PyTorch's own allocator can do and this one cannot."""

BUILD_SECONDS = 600
"""A build that takes longer than this is given up."""


class Unavailable(Exception):
    """The shim cannot be used; the message says why."""


class Shim:
    """A shim that was loaded."""

    missing: Tuple[str, ...] = MISSING

    def __init__(self, library: ctypes.CDLL, reason: str) -> None:
        self._library = library
        self.reason = reason

    def install(self, calls: int) -> None:
        """Makes PyTorch use it."""
        install = self._library.headwater_shim_install
        install.restype = ctypes.c_char_p
        install.argtypes = [ctypes.c_void_p]
        problem = install(calls)
        if problem is not None:
            raise Unavailable(problem.decode(errors="replace"))


def load(torch: Any) -> Shim:
    """The shim for this PyTorch, built now if it was not before."""
    if platform.system() != "Linux":
        raise Unavailable(f"it is not made for {platform.system()}")
    command = _command(torch)
    path = _cache() / f"headwater-shim-{_fingerprint(torch, command)}.so"
    reason = f"built earlier, {path}"
    if not path.exists():
        _build(command, path)
        reason = f"built now, {path}"
    try:
        return Shim(ctypes.CDLL(str(path)), reason)
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "c++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    raise Unavailable(f"there is no C++ compiler ({named or 'g++, c++ or clang++'})")


def _command(torch: Any) -> List[str]:
    """The compiler and everything but the files."""
    root = Path(torch.__file__).parent
    if not (root / "include" / "torch" / "csrc" / "cuda" / "CUDAPluggableAllocator.h").exists():
        raise Unavailable(f"this PyTorch has no C++ headers (looked in {root / 'include'})")
    includes = _cuda_includes()
    # PyTorch's headers use C++20 from 2.12 on.
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    standard = "c++20" if version >= (2, 12) else "c++17"
    command = [_compiler(), "-shared", "-fPIC", "-O2", f"-std={standard}", "-fvisibility=hidden", "-w"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-DUSE_CUDA"]
    if not any((include / "crt" / "host_config.h").exists() for include in includes):
        command += [f"-I{SOURCES / 'compat'}"]
    command += [f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    command += [f"-I{include}" for include in includes]
    command += [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"]
    # The libraries are in the process already; naming them only tells the linker where the symbols are.
    command += ["-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"]
    return command + [f"-Wl,{library}" for library in _loaded("libstdc++.so")]


def _loaded(name: str) -> List[str]:
    """The file that this process has loaded under a name.

    Where the compiler finds no shared C++ library it takes the static one, and its second set of locale facets ends the process at the
    first number that is printed (seen on an H200 machine). So the one that PyTorch uses is named to the linker.
    """
    try:
        with open("/proc/self/maps") as maps:
            files = [line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")]
    except OSError:
        return []
    return sorted({file for file in files if Path(file).name.startswith(name)})[:1]


def _cuda_includes() -> List[Path]:
    """The folders with CUDA's run-time headers: a toolkit's, or those of NVIDIA's Python packages."""
    roots: List[Path] = []
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            roots.append(Path(os.environ[name]) / "include")
    for folder in [sysconfig.get_paths()["purelib"], *sys.path]:
        nvidia = Path(folder) / "nvidia"
        roots += [nvidia / part / "include" for part in ("cu13", "cuda_runtime", "cuda_crt", "cuda_nvcc")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(Path(nvcc).resolve().parent.parent / "include")
    roots.append(Path("/usr/local/cuda/include"))
    # One that is whole, with the compiler's part, before one that is not.
    found = [root for root in dict.fromkeys(roots) if (root / "cuda_runtime_api.h").exists() or (root / "crt").exists()]
    if not any((root / "cuda_runtime_api.h").exists() for root in found):
        raise Unavailable(
            "cuda_runtime_api.h was not found: set CUDA_HOME to a CUDA toolkit, or install the Python package nvidia-cuda-runtime"
        )
    return sorted(found, key=lambda root: not (root / "crt" / "host_config.h").exists())


def _fingerprint(torch: Any, command: List[str]) -> str:
    """Everything that the result depends on."""
    digest = hashlib.sha256()
    for part in (torch.__version__, torch.version.git_version or "", *command):
        digest.update(part.encode() + b"\0")
    digest.update(_compiler_version(command[0]).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _compiler_version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{compiler} does not run: {error}") from error


def _cache() -> Path:
    """Where built shims are kept."""
    named = os.environ.get("HEADWATER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    choices = [Path(named) / "headwater"] if named else []
    choices += [Path.home() / ".cache" / "headwater", Path(tempfile.gettempdir()) / f"headwater-{os.getuid()}"]
    for folder in choices:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # A folder that somebody else could have put a library into is not used.
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise Unavailable("there is no folder to keep it in: set HEADWATER_CACHE to one")


def _build(command: List[str], path: Path) -> None:
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "shim.so"
            objects = _compile(command, Path(folder))
            _run([command[0], *objects, *_linking(command), "-o", str(made)])
            # At once: nobody ever sees half of it.
            made.rename(path)


def _linking(command: List[str]) -> List[str]:
    return ["-shared", *(part for part in command if part.startswith(("-L", "-l", "-Wl")))]


def _compile(command: List[str], folder: Path) -> List[str]:
    """All files at once: each takes PyTorch's headers in anew, which is most of the time."""
    flags = [part for part in command[1:] if part != "-shared" and not part.startswith(("-L", "-l", "-Wl"))]
    running = []
    for name in FILES:
        output = folder / (name + ".o")
        one = [command[0], *flags, "-c", str(SOURCES / name), "-o", str(output)]
        running.append((output, one, subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
    failure: Optional[str] = None
    for _, one, process in running:
        try:
            said, _ = process.communicate(timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            failure = failure or f"{' '.join(one)} took more than {BUILD_SECONDS} s"
        if process.returncode != 0:
            failure = failure or f"it does not compile: {_first_error(said)}"
    if failure:
        raise Unavailable(failure)
    return [str(output) for output, _, _ in running]


def _run(command: List[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        raise Unavailable(f"it does not link: {_first_error(done.stdout)}")


def _first_error(said: str) -> str:
    errors = [line for line in said.splitlines() if "error" in line]
    return (errors or said.splitlines() or ["no reason was given"])[0].strip()
