"""Statistics of paired answers: what an audit concludes from, on plain numbers, no vLLM and no torch.

scipy and statsmodels do what they can. Ours is what they lack: the exact test of non-inferiority for paired
0/1 scores (`paired_binary`), its counterpart for graded scores (`paired_graded`), the verdict with the sample
size it needs (`noninferiority`), and a bootstrap stratified by task (`resampling`).
"""
