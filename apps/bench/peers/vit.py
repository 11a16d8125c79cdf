"""The sizes of the models of vit_step.py and jax_vit_step.py, and what a forward of them costs."""

WIDTHS = {"vit_tiny": (192, 3), "vit_small": (384, 6), "vit_base": (768, 12)}  # width, heads
DEPTH = 12


def forward_flops(arguments):
    """Operations of the matrix products of a forward on one image, 2 for each multiply-add: polygrad's model_flops."""
    width, _ = WIDTHS[arguments.model]
    patches = (arguments.image // arguments.patch) ** 2
    tokens = patches + 1
    block = 12 * tokens * width * width + 2 * tokens * tokens * width
    embed = patches * 3 * arguments.patch**2 * width
    return 2.0 * (DEPTH * block + embed + width * arguments.classes)
