"""Tables of the dynamic code of 8 bits, and codes of blocks of values, as bitsandbytes makes them: `dynamic_codes.txt`.

pip install --no-deps bitsandbytes==0.50.2; pip install numpy
python golden/optim/dynamic_codes.py > golden/optim/dynamic_codes.txt

Neither torch nor a GPU is needed: the tables come from the source of `create_dynamic_map`, run with the two functions of torch that
it calls; the codes come from the library for the CPU.
"""
import ctypes
import importlib.util
from pathlib import Path

import numpy as np

PACKAGE = Path(importlib.util.find_spec("bitsandbytes").origin).parent


class Torch:
    float32 = np.float32

    @staticmethod
    def linspace(start, end, steps, dtype):
        start, end = dtype(start), dtype(end)
        step = dtype((end - start) / dtype(steps - 1))
        first = [start + step * dtype(i) for i in range(steps // 2)]
        last = [end - step * dtype(steps - 1 - i) for i in range(steps // 2, steps)]
        return np.array(first + last, dtype)

    @staticmethod
    def tensor(values, dtype):
        return np.array(values, dtype)


def dynamic_map(signed):
    source = (PACKAGE / "functional.py").read_text()
    begin = source.index("def create_dynamic_map")
    names = {"torch": Torch}
    exec(source[begin : source.index("\ndef ", begin)], names)
    return names["create_dynamic_map"](signed)


def codes(table, values):
    library = ctypes.CDLL(str(PACKAGE / "libbitsandbytes_cpu.so"))
    out, scale = np.zeros(len(values), np.uint8), np.zeros(1, np.float32)
    address = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    size = ctypes.c_longlong(len(values))
    library.cquantize_blockwise_cpu_fp32(address(table), address(values), address(scale), address(out), size, size)
    return out


print("# bitsandbytes 0.50.2; golden/optim/dynamic_codes.py")
random = np.random.default_rng(8)
for name in ["signed", "unsigned"]:
    table = dynamic_map(name == "signed")
    print(f"{name} table: " + " ".join(str(v) for v in table))
    for _ in range(4):
        # Normal values times powers of ten from 1 to 1e-8.
        values = random.normal(size=256) * 10.0 ** random.uniform(-8, 0, size=256)
        values = (values if name == "signed" else np.abs(values)).astype(np.float32)
        largest = np.abs(values).argmax()
        values[largest] = np.abs(values[largest])
        out = codes(table, values)
        print(f"{name} block: " + " ".join(str(v) for v in values) + " | " + " ".join(map(str, out)))
