"""Other names of devices: what drivers, reports and data sets call them. Tables only.

Keys are folded names (`fold`): lower case, without vendor words, spaces, dashes or brackets.
"""

import re

_VENDOR_WORDS = frozenset(
    {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "corporation"}
    | {"core", "graphics", "gpu", "cpu", "r", "tm"}
)


def fold(name: str) -> str:
    """Return the name without case, vendor words and separators.

    >>> fold("NVIDIA A100-SXM4-80GB"), fold("Intel(R) Core(TM) i9-10940X CPU")
    ('a100sxm480gb', 'i910940x')
    """
    words = re.split(r"[^a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in _VENDOR_WORDS)


# One device only: these names are given to no other product. A name followed by the memory of
# the card ('L40-48GB') needs no row.
ALIASES = {
    fold(alias): name
    for name, aliases in {
        "a100-sxm4-40gb": ("A100-SXM-40GB", "A100 (Amazon EC2 P4d)"),
        "a100-sxm4-80gb": ("A100-SXM-80GB",),
        "a100-pcie-40gb": ("A100 40GB PCIe",),
        "a100-pcie-80gb": ("A100 80GB PCIe",),
        "arc-pro-b60": ("Arc B60", "B60"),
        "b200-sxm": ("B200", "B200-192GB"),
        "b300-sxm": ("B300", "B300 SXM6 AC"),
        "gb200": ("GB200-192GB",),  # sold by nominal memory
        "gb300": ("GB300-288GB",),
        "gh200-96gb": ("GH200 480GB", "GH200-96GB-HBM3"),
        "gh200-144gb": ("GH200-144GB HBM3e", "GH200 144G HBM3e"),
        "gtx-1080": ("1080",),
        "gtx-1080ti": ("1080 Ti",),
        "h100-nvl-94gb": ("H100 NVL",),
        "h100-pcie-80gb": ("H100 PCIe", "H100 80GB PCIe"),
        "h100-sxm5-80gb": ("H100 80GB HBM3", "H100-SXM-80GB", "H100-SXM5", "H100-SXM"),
        "h20-96gb": ("H20",),
        # the NVL board says so in its name, a bare H200 is the SXM one
        "h200-sxm-141gb": ("H200", "H200-SXM", "H200-SXM5-141GB"),
        "h200-nvl-141gb": ("H200 NVL",),
        "mi300x": ("MI300X OAM",),
        "rtx-2080-ti": ("2080 Ti", "RTX2080Ti (per the paper)"),
        "rtx-3090": ("3090",),
        "rtx-4090": ("4090",),
        "rtx-5090": ("5090",),
        "rtx-6000-ada": ("RTX 6000 Ada Generation",),
        "rtx-a6000": ("A6000",),
        "rtx-pro-4500-32gb": (
            "RTX PRO 4500", "RTX PRO 4500 Blackwell", "RTX PRO 4500 Blackwell 32GB",
        ),
        "rtx-pro-5000-48gb": ("RTX PRO 5000 Blackwell 48GB",),
        "rtx-pro-6000-maxq": (
            "RTX PRO 6000 Blackwell Max-Q",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        "rtx-pro-6000-server": ("RTX PRO 6000 Blackwell Server Edition",),
        "rtx-pro-6000-ws": (
            "RTX PRO 6000 Workstation",
            "RTX PRO 6000 Blackwell Workstation Edition",
        ),
        "titanx-maxwell": ("GTX TITAN X",),
        "v100-sxm2": ("V100-SXM2-32GB",),
        "vega-fe": ("Vega Frontier Edition", "Vega Frontier Edition 16GB"),
    }.items()
    for alias in aliases
}  # fmt: skip

_A100 = ("a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb")
_V100 = ("v100-sxm2-16gb", "v100-sxm2", "v100-sxm3-32gb", "v100-pcie-16gb", "v100-pcie-32gb")
_PRO_6000 = ("rtx-pro-6000-server", "rtx-pro-6000-ws", "rtx-pro-6000-maxq")

# Several devices, the first is taken with a Note: the commonest in measured data.
DEFAULTED = {
    fold(text): names
    for text, names in {
        "A100-40GB": ("a100-sxm4-40gb", "a100-pcie-40gb"),
        "A100-80GB": ("a100-sxm4-80gb", "a100-pcie-80gb"),
        "H100-96GB (GH200), H20-96GB": ("gh200-96gb", "h20-96gb"),
        "H200-141GB": ("h200-sxm-141gb", "h200-nvl-141gb"),
        "H200-141GB (SXM5, NVL)": ("h200-sxm-141gb", "h200-nvl-141gb"),
        "RTX PRO 6000 Blackwell 96GB (Server, Workstation, Max-Q)": _PRO_6000,
        "V100-16GB": ("v100-sxm2-16gb", "v100-pcie-16gb"),
        "V100-32GB": ("v100-sxm2", "v100-sxm3-32gb", "v100-pcie-32gb"),
        "V100 (memory size not stated)": _V100,
    }.items()
}

# One device of the catalogue, taken with a Note: the name is also that of a product not in it.
NOTED = {
    fold(text): (name, other)
    for name, other, texts in (
        ("gh200-96gb", "a board with 96 GB and the bandwidth of H100 SXM5", ("H100-96GB",)),
        ("jetson-agx-orin", "a module of 32 GB with fewer units", ("AGX Orin",)),
        ("jetson-agx-xavier", "modules of 16 and 64 GB", ("AGX Xavier",)),
        ("jetson-orin-nx", "a module of 8 GB with a lower clock", ("Orin NX",)),
        ("jetson-tx2", "modules of 4 GB and industrial ones", ("TX2",)),
        ("p100-pcie-16gb", "a board of 12 GB with 549 GB/s", ("P100 PCIe",)),
        ("rtx-pro-5000-48gb", "a card of 72 GB", ("RTX PRO 5000", "RTX PRO 5000 Blackwell")),
    )
    for text in texts
}

# Several devices, refused when typed in short; with a vendor's name before it, as reports write
# it ('NVIDIA A100'), the first is taken with a Note.
REFUSED = {
    fold(text): names
    for text, names in {
        "A100": _A100,
        "A100-SXM4": ("a100-sxm4-40gb", "a100-sxm4-80gb"),
        "A100-SXM": ("a100-sxm4-40gb", "a100-sxm4-80gb"),
        "A100-PCIe": ("a100-pcie-40gb", "a100-pcie-80gb"),
        "GH200": ("gh200-96gb", "gh200-144gb"),
        "H100": ("h100-sxm5-80gb", "h100-pcie-80gb", "h100-nvl-94gb"),
        "H100-80GB": ("h100-sxm5-80gb", "h100-pcie-80gb"),
        "P100": ("p100-pcie-16gb", "p100-unspecified"),
        "RTX PRO 6000": _PRO_6000,
        "RTX PRO 6000 Blackwell": _PRO_6000,
        "TITAN X": ("titanx-pascal", "titanx-maxwell"),
        "V100": _V100,
        "V100-PCIe": ("v100-pcie-16gb", "v100-pcie-32gb"),
    }.items()
}

# Known to exist, no figures here: beginning of the folded name, what it is.
NO_DATA_SHEET = (
    ("unknown", "a device that its source does not name"),
    ("thor", "the GPU of the Jetson Thor module"),
    ("ofamazonec2", "the processor of a rented machine"),
    ("amazonec2", "the processor of a rented machine"),
    ("googlecolab", "the processor of a hosted notebook"),
    ("dualxeon", "an Intel Xeon processor"),
    ("xeon", "an Intel Xeon processor"),
    ("epyc", "an AMD EPYC processor"),
    ("ryzen", "an AMD Ryzen processor"),
    ("qualcommsnapdragon", "a phone processor"),
    ("qualcommadreno", "a phone GPU"),
    ("iphone", "a phone"),
    ("raspberrypi", "a single-board computer"),
    ("huaweiascend", "an NPU"),
    ("rbln", "an NPU"),
    ("mlsoc", "an NPU"),
    ("recaccel", "an NPU"),
    ("tpu", "a TPU"),
    ("googletpu", "a TPU"),
    ("gaudi", "an NPU"),
    ("habanagaudi", "an NPU"),
    ("inferentia", "an NPU"),
    ("awsinferentia", "an NPU"),
    ("apple", "an Apple processor"),
)
