# lot = "log"
# words = ["not valid Python", "line 7"]

import flatout


def experiment(:
    return flatout.Experiment()
