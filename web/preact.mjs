// Preact without what no page has: class components, contexts, error boundaries, hydration, elements that were there
// before, HTML as text, and functions as refs. What asks for these becomes constant, and the minifier drops the rest.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// Code of each file, and what replaces it.
const CONSTANT = {
  "create-element.js": [
    ["typeof type == 'function' && type.defaultProps != NULL", "false"],
    ["original == NULL && options.vnode != NULL", "false"],
  ],
  "component.js": [
    ["this.context = context;", ""],
    ["BaseComponent.prototype.render = Fragment;", ""],
    [/BaseComponent.prototype.forceUpdate = [\s\S]*?\n};/, ""],
    ["if (options.vnode)", "if (false)"],
    ["if (callback)", "if (false)"],
    ["typeof update == 'function'", "false"],
    ["update == NULL", "false"],
    ["oldVNode._flags & MODE_HYDRATE ? [oldDom] : NULL", "NULL"],
    ["!!(oldVNode._flags & MODE_HYDRATE)", "false"],
    ["prevDebounce != options.debounceRendering", "false"],
    ["prevDebounce = options.debounceRendering;", ""],
    ["(prevDebounce || defer)(process)", "defer(process)"],
    ["typeof Promise == 'function'", "true"],
  ],
  "render.js": [
    ["parentDom == document", "false"],
    ["options._root", "false"],
    ["typeof replaceNode == 'function'", "false"],
    ["replaceNode && replaceNode._children", "false"],
    ["!isHydrating && replaceNode", "false"],
    ["parentDom.firstChild", "NULL"],
  ],
  "catch-error.js": [["(vnode = vnode._parent)", "false"]],
  "diff/index.js": [
    [/const isClassComponent =[^;]*;/, ""],
    ["isClassComponent", "false"],
    [/tmp = newType.contextType;[\s\S]*: globalContext;/, ""],
    ["if (provider) provider.sub(c);", ""],
    ["c.context = componentContext;", ""],
    [/,\s+componentContext/, ""],
    [", c.context)", ")"],
    ["(props, state, context)", "(props)"],
    ["(props, context)", "(props)"],
    ["if (clearProcessingException)", "if (false)"],
    ["c.getChildContext != NULL", "false"],
    ["clearProcessingException = c._processingException = c._pendingError;", ""],
    ["oldVNode._flags & MODE_SUSPENDED", "false"],
    ["newVNode._flags & MODE_SUSPENDED ? undefined : oldDom", "oldDom"],
    ["isHydrating || excessDomChildren != NULL", "false"],
    ["if (!e.then) ", ""],
    ["nodeType == 'math'", "false"],
    ["newProps.is && newProps", "undefined"],
    ["if (isHydrating) {", "if (false) {"],
    ["!isHydrating || dom.data != newProps", "true"],
    ["!isHydrating || typeof value == 'function'", "true"],
    ["if (!isHydrating) {", "{"],
    ["!isHydrating && excessDomChildren != NULL", "false"],
    ["excessDomChildren && slice.call(dom.childNodes)", "NULL"],
    [/excessDomChildren\s+\? excessDomChildren\[0\]\s+:/, ""],
    ["excessDomChildren != NULL", "false"],
    [/excessDomChildren == NULL &&/, ""],
    ["i == 'dangerouslySetInnerHTML'", "false"],
    ["i == 'checked'", "false"],
    ["i = 'checked'", ""],
    ["checked != UNDEFINED && checked != dom[i]", "false"],
    ["i == 'value' && 'defaultValue' in newProps", "false"],
    ["newVNode.type == 'template'", "false"],
    ["nodeType == 'foreignObject'", "false"],
    ["nodeType == 'progress'", "false"],
    ["typeof ref == 'function'", "false"],
    ["r.componentWillUnmount", "false"],
  ],
  "children.js": [[/childVNode.constructor == String|typeof childVNode == 'bigint'/, "false"]],
  "props.js": [
    ["typeof value == 'string'", "false"],
    ["typeof oldValue == 'string'", "false"],
    ["name != (name = name.replace(CAPTURE_REGEX, '$1'))", "false"],
    [/useCapture\s+\? eventProxyCapture : eventProxy/, "eventProxy"],
    ["const eventProxyCapture = createEventProxy(true);", ""],
    ["name + useCapture", "name"],
    ["e.type + useCapture", "e.type"],
    ["name == 'onFocusOut' || name == 'onFocusIn'", "false"],
    ["options.event ? options.event(e) : e", "e"],
    [".replace(/xlink(H|:h)/, 'h').replace(/sName$/, 's')", ""],
    ["name == 'popover' && value == true", "false"],
  ],
  "hooks/src/index.js": [
    [/if \(old\w+\)/, "if (false)"],
    [/let old\w+ = options\.\w+;/, ""],
    [/options._root = [\s\S]*?\n};/, ""],
    ["if (options._hook)", "if (false)"],
  ],
};

export const smallPreact = {
  name: "small preact",
  setup({ onResolve, onLoad }) {
    const folder = join(dirname(fileURLToPath(import.meta.url)), "node_modules", "preact");
    onResolve({ filter: /^preact$/ }, () => ({ path: join(folder, "src", "index.js") }));
    onResolve({ filter: /^preact\/hooks$/ }, () => ({ path: join(folder, "hooks", "src", "index.js") }));
    onLoad({ filter: /preact\/(src|hooks)\/.*\.js$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      const file = Object.keys(CONSTANT).find((name) => path.endsWith(`/${name}`));
      for (const [code, replacement] of CONSTANT[file] ?? []) {
        const next = contents.replaceAll(code instanceof RegExp ? new RegExp(code, "g") : code, replacement);
        if (next === contents) throw new Error(`${path} does not have ${code}`);
        contents = next;
      }
      return { contents };
    });
  },
};
