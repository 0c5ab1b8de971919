"""An HTCondor pool beside the lab's cluster, pilots for it, and a compute element that submits them."""
