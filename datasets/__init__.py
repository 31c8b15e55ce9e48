"""Real and synthetic image sets, one a file."""

if __name__ == "datasets":
    # Someone works in the root of the checkout, where this folder shadows Hugging Face's package.
    raise ImportError(
        "this folder is the package 'bench.datasets', not Hugging Face's 'datasets': import "
        "'bench.datasets', or start Python outside the root of the checkout (or with 'python -P')"
    )
