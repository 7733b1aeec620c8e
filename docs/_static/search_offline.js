"use strict";

// Answer requests for our own pages from TEXTS: a browser does not let a page opened from disk fetch another.
{
  const root = new URL(document.documentElement.dataset.content_root, location.href).href;
  const fetched = window.fetch;
  window.fetch = (address, ...options) => {
    const page = new URL(address, location.href).href.slice(root.length).split("#")[0];
    return page in TEXTS ? Promise.resolve(new Response(TEXTS[page])) : fetched(address, ...options);
  };
}
