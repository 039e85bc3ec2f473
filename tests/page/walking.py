"""Walk through a page in a browser, and read what it shows."""

READ = """
async (places) => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const changed = () => new Promise((done) => addEventListener("hashchange", done, { once: true }));
  const text = (selector, from = document) => from.querySelector(selector)?.textContent ?? null;
  const found = [];
  for (const place of places) {
    if (location.hash !== place) {
      location.hash = place;
      await changed();
    }
    await drawn();
    const sources = [...document.querySelectorAll("table.sources tbody tr")].map((row) => ({
      source: text("td.left", row),
      measures: Object.fromEntries([...row.querySelectorAll("[data-measure]")].map((cell) => [
        cell.dataset.measure, [cell.textContent, cell.title]])),
      rest: text("[data-rest]", row),
    }));
    found.push({
      hash: location.hash,
      head: text("#where"),
      cell: text(".matrix-panel p.cell"),
      arithmetic: text("[data-arithmetic]"),
      badge: text(".matrix-panel .badge"),
      sources: sources.filter((row) => row.rest === null),
      rest: sources.find((row) => row.rest !== null)?.rest ?? null,
      statistics: Object.fromEntries([...document.querySelectorAll("[data-statistic]")].map((cell) => [
        cell.dataset.statistic, [cell.textContent, cell.title]])),
    });
  }
  return found;
}
"""


def read_places(page, places):
    """What a page shows at each of these addresses."""
    return page.evaluate(READ, places)


def number(text):
    """A number as a page writes it."""
    return float(text.replace("\N{MINUS SIGN}", "-"))


def shows(page, expression, value, seconds=4.0):
    """Tell whether an expression takes a value within some seconds; the page's policy forbids it to poll by itself."""
    for _ in range(int(seconds / 0.025)):
        if page.evaluate(expression) == value:
            return True
        page.wait_for_timeout(25)
    return False


def middle_of_cell(picture, row, column):
    """Where the middle of a cell is on a heat map, as `position` takes it."""
    left, top, wide, high = map(float, picture.get_attribute("data-cells").split())
    return {"x": left + (column + 0.5) * wide, "y": top + (row + 0.5) * high}
