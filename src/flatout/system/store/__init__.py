"""Files that flatout keeps: run folders, recipes, data sets, environments, journals."""
