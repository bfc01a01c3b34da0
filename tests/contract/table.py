"""The table of all patches, made from their records.

python -m tests.contract.table > docs/patches.md
"""

from tests.contract.records import collect

HEADER = """# What vllm-asd replaces in vLLM

Made from the records in `vllm_asd/upstream/` by `python -m tests.contract.table > docs/patches.md`; a test
keeps it current, and another holds every record against the installed vLLM.

*When*: a "cold" target runs at start-up or for a report, never in a step; its patch only looks at the
configuration and may be in place while ASD is off. The others are replaced only when
`"rejection_sample_method": "asd"` is asked for: in the class or module ("hot"), or on the one object that
serves ASD ("hot, object").

| target | when | process | why | removed when |
|---|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    rows = []
    for patch in collect():
        kinds = [name for name, holds in (("hot", patch.hot), ("object", patch.instance)) if holds]
        when = ", ".join(kinds) or "cold"
        target = patch.target.replace(":", ".")
        rows.append(f"| `{target}` | {when} | {patch.process} | {patch.why} | {patch.remove_when} |\n")
    return HEADER + "".join(rows)


if __name__ == "__main__":
    print(render(), end="")
