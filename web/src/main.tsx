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

// The script that unpacks this one hands the data over: see loader.ts.
Object.assign(window, {
  async drawPage(block: ArrayBuffer) {
    const root = document.getElementById("app")!;
    let draw = () => {};
    startTheme(() => draw());
    const [header, data] = read(block);
    if (header.version !== VERSION) throw new Error(`its data have version ${header.version}`);
    setPalette(header.palette);
    root.textContent = "";
    await new Promise((done) => setTimeout(done)); // what was read is one task, and what is drawn another
    draw = () => render(<Page header={header} data={data} />, root);
    change();
    document.documentElement.dataset.ready = "";
  },
});
