// The script that a page holds as it is: it unpacks the style and the other script, both of which the policy of the page
// names by their hashes, and hands the data over. attnscope/views/page writes all of them.

declare const drawPage: (data: ArrayBuffer) => Promise<void>; // see main.tsx

const find = (id: string) => document.getElementById(id)!;

async function unpack(id: string): Promise<Response> {
  const binary = atob(find(id).textContent!); // skips line breaks
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
}

async function load() {
  try {
    // All three at once: the browser unpacks what is packed while it waits for the others.
    const [style, script, data] = await Promise.all(["style", "script", "data"].map(unpack));
    for (const [tag, text] of [
      ["style", style],
      ["script", script],
    ] as const) {
      const element = document.createElement(tag);
      element.textContent = await text!.text();
      document.head.append(element);
    }
    await drawPage(await data!.arrayBuffer());
  } catch (error) {
    find("app").textContent = `This page cannot be drawn: ${(error as Error).message}`;
  }
}

void load();
