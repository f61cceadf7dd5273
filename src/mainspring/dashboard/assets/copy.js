// Buttons that copy a text: <button data-copy="#id of the element with the text">.
import { say } from "./messages.js";

export function startCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.querySelector(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      // Browsers allow it only under HTTPS and on this machine.
      document.querySelector(button.dataset.copy).closest("details")?.setAttribute("open", "");
      const range = document.createRange();
      range.selectNodeContents(document.querySelector(button.dataset.copy));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      say("The browser does not allow copying here. The text is selected: press Ctrl+C.", "error");
    }
  });
}
