"""`servingslo demo`: the main job on this machine, watched live."""
