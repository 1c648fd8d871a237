"""Which commands does a shell script run, and with which words?

Tokens, expansion of words, arithmetic, built-in commands; nothing is executed.
Must not import any other package of runtimes.
"""
