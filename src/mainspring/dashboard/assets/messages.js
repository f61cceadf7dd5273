// Short messages at the edge of the page, and questions before something is deleted.
const SHOWN_MS = 6000;

// `link`: an address and its words, after the text.
export function say(text, kind = "done", link = null) {
  const message = document.createElement("div");
  message.className = `message message-${kind}`;
  const words = document.createElement("span");
  words.textContent = text;
  if (link !== null) {
    const leads = document.createElement("a");
    leads.href = link.address;
    leads.textContent = link.words;
    words.append(" ", leads);
  }
  const close = document.createElement("button");
  close.type = "button";
  close.className = "quiet";
  close.setAttribute("aria-label", "Close this message");
  close.textContent = "✕";
  close.addEventListener("click", () => message.remove());
  message.append(words, close);
  document.getElementById("messages").append(message);
  if (kind !== "error") setTimeout(() => message.remove(), SHOWN_MS);
}

// A message that stays, with a link that opens in another tab. It is shown once at a time.
export function sayOnce(text, address, link) {
  if (document.querySelector("#messages [data-once]")) return;
  say(text, "error");
  const message = document.getElementById("messages").lastElementChild;
  message.dataset.once = "";
  const leads = document.createElement("a");
  leads.href = address;
  leads.target = "_blank";
  leads.rel = "noopener";
  leads.textContent = link;
  message.firstElementChild.append(" ", leads);
}

// Resolves to true if the person agrees.
export function ask(question, yes = "Yes") {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = question;
  document.getElementById("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
