// Asks for this page again when something has changed; what one is typing stays.
"use strict";
const busy = () => {
  const at = document.activeElement;
  if (at && at.closest("form") && at.matches("input:not([type=checkbox]), select, textarea")) return true;
  return [...document.querySelectorAll("input[type=file], input[name], textarea")].some((one) =>
    one.type === "checkbox" ? one.checked !== one.defaultChecked
      : one.type !== "hidden" && one.value !== (one.defaultValue || ""));
};
const renew = async () => {
  if (busy()) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || busy()) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("main");
  const frame = main.querySelector("iframe");
  const focused = document.activeElement && document.activeElement.textContent;
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  main.replaceChildren(...fresh.getElementById("main").childNodes);
  main.querySelectorAll("details").forEach((one, at) => { if (at in open) one.open = open[at]; });
  if (frame) main.querySelector("iframe")?.replaceWith(frame);
  [...main.querySelectorAll("button, a, summary")].find((one) => one.textContent === focused)?.focus();
};
if (document.querySelector("main[id=main]") && !document.querySelector("main [role=alert]")) {
  const events = new EventSource("/events");
  events.addEventListener("changed", renew);
}
