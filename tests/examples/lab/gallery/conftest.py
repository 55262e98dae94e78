"""Nothing of the gallery is looked up in the network; it must be said before the libraries load."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
