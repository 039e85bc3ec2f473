"""A DoctorReport as JUnit XML, which servers of continuous integration read."""

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from attnscope.base.system.escape import escape_control
from attnscope.findings.doctor import VERDICTS, DoctorCheck, DoctorReport


def junit_xml(report: DoctorReport) -> Iterator[bytes]:
    """Yield a test case for every check: failed if it is wrong, skipped unless it is ok."""
    wrong = sum(check.verdict == "wrong" for check in report.checks)
    untold = sum(check.verdict not in ("ok", "wrong") for check in report.checks)
    counts = f'tests="{len(report.checks)}" failures="{wrong}" errors="0" skipped="{untold}"'
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f'<testsuites {counts}>\n<testsuite name="attnscope doctor" {counts}>\n'.encode()
    yield f'<properties><property name="model" value={_attribute(report.model)}/></properties>\n'.encode()
    for check in report.checks:
        yield _case(report, check).encode()
    yield b"</testsuite>\n</testsuites>\n"


def _case(report: DoctorReport, check: DoctorCheck) -> str:
    opened = f"<testcase classname={_attribute(f'attnscope.doctor.{report.model_class}')} name={_attribute(check.name)}"
    if check.verdict == "ok":
        return f"{opened}/>\n"
    reason = check.reason or check.title
    if check.verdict != "wrong":
        return f"{opened}><skipped message={_attribute(f'{VERDICTS[check.verdict]}: {reason}')}/></testcase>\n"
    lines = [f"does not hold: {check.title}", f"value {check.value}, limit {check.limit} {check.unit}", f"where: {check.where}",
             f"why: {check.why}", f"repair: {check.repair}"]  # fmt: skip
    body = escape(escape_control("\n".join(lines)).replace("\\n", "\n"))
    return f"{opened}><failure message={_attribute(reason)}>{body}</failure></testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(escape_control(text))
