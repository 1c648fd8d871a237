"""How does `servingslo demo` show the main job on this machine?

Stories with their verdicts, the system that they run on, panels and the report.
Must not import backtesting or fitting.
"""
