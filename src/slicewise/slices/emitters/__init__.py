"""A packing as files of others: mig-parted, Kubernetes, nvidia-smi, Triton. Texts only."""
