# lot = "log"
# words = ["no function `experiment`"]

import flatout


def my_experiment():
    return flatout.Experiment()
