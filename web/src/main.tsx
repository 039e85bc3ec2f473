import "./style.css";
import { render } from "preact";
import { type Data, type Header, read } from "./data";
import { ThemeButton, tree } from "./elements";
import { setPalette } from "./format";
import { aboutOf, Nodes } from "./parts";
import { change, startTheme } from "./theme";

const VERSION = 1;

function Page({ header, data }: { header: Header; data: Data }) {
  return (
    <>
      {header.nodes[aboutOf(header.nodes).length].k !== "walk" && (
        <header class="top">
          {tree(header.heading)}
          <ThemeButton />
        </header>
      )}
      <main>
        <Nodes nodes={header.nodes} data={data} />
      </main>
      <footer>{header.footer}</footer>
    </>
  );
}

async function start() {
  const root = document.getElementById("app")!;
  const source = document.getElementById("data")!;
  let draw = () => {};
  startTheme(() => draw());
  try {
    const [header, data] = await read(source.textContent ?? "");
    if (header.version !== VERSION) throw new Error(`its data have version ${header.version}`);
    setPalette(header.palette);
    root.textContent = "";
    await new Promise((done) => setTimeout(done)); // what was read is one task, and what is drawn another
    draw = () => render(<Page header={header} data={data} />, root);
    change();
    document.documentElement.dataset.ready = "";
  } catch (error) {
    root.textContent = `This page cannot be drawn: ${error instanceof Error ? error.message : error}`;
  }
}

void start();
