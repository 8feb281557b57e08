// The photos to choose from: the embedded ones, and one's own, which are sent to the server's memory one by one.
import { ask } from "/page.js";

const element = (id) => document.getElementById(id);

export function create(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

export class Photos {
  constructor(setting, changed) {
    this.setting = setting;
    this.changed = changed;
    this.known = new Map(); // id → {title, picture, box, label()}, in the order of the page
    for (const photo of setting.photos) this.#show(photo, element("embedded"), () => null);
    element("first").addEventListener("click", () => this.#choose((_, i) => i < 8));
    element("all").addEventListener("click", () => this.#choose((_, i) => i < setting.photos.length));
    element("none").addEventListener("click", () => this.#choose(() => false));
    element("files").addEventListener("change", (event) => {
      this.add([...event.target.files]);
      event.target.value = ""; // so that the same file can be chosen again
    });
    this.#takeDrops(element("drop"));
    this.#choose((_, i) => i < 8, false);
  }

  chosen() {
    return [...this.known].filter(([, photo]) => photo.box.checked).map(([id, photo]) => ({ id, label: photo.label() }));
  }

  picture(id) {
    return this.known.get(id)?.picture;
  }

  async add(files) {
    const [problems, before] = [[], this.known.size];
    for (const file of files) {
      const problem = await this.#send(file);
      if (problem && !problems.includes(problem)) problems.push(problem);
    }
    element("upload-problem").textContent = problems.join(" ");
    element("upload-problem").hidden = problems.length === 0;
    this.#count();
    if (this.known.size > before) this.changed(); // a refused file changes nothing
  }

  async #send(file) {
    const { bytes } = this.setting.limits;
    if (file.size > bytes) return `“${file.name}” is larger than ${bytes >> 20} MB; choose a smaller one.`;
    try {
      const address = `/api/photos?name=${encodeURIComponent(file.name)}`;
      const response = await ask(address, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
      const photo = await response.json();
      if (!response.ok) return photo.error;
      this.#showOwn(photo);
      return null;
    } catch {
      return `“${file.name}” could not be sent; is unsum still running?`;
    }
  }

  #showOwn(photo) {
    const labels = this.setting.labels;
    const label = create("select", { ariaLabel: `Label of ${photo.title}` });
    // Numbers, not the embedded photos' tags: nobody knows what one's own photos show.
    labels.forEach((name, i) => label.append(create("option", { value: name, textContent: `class ${i + 1}` })));
    label.value = this.#unusedLabel();
    label.addEventListener("change", () => this.changed());
    const remove = create("button", { type: "button", textContent: "Remove", ariaLabel: `Remove ${photo.title}` });
    const place = create("div", { className: "own" });
    element("own").append(place);
    this.#show(photo, place, () => label.value);
    place.append(label, remove);
    remove.addEventListener("click", () => {
      ask(`/api/photos/${photo.id}`, { method: "DELETE" }).catch(() => {}); // the server forgets it in any case
      this.known.delete(photo.id);
      place.remove();
      this.#count();
      this.changed();
    });
    this.known.get(photo.id).box.checked = this.chosen().length < this.setting.limits.photos;
  }

  #unusedLabel() {
    const used = new Set([...this.setting.photos.map((photo) => photo.label), ...[...this.known.values()].map((photo) => photo.label())]);
    return this.setting.labels.find((name) => !used.has(name)) ?? this.setting.labels[0];
  }

  #show(photo, place, label) {
    const box = create("input", { type: "checkbox", ariaLabel: photo.title });
    const image = create("img", { src: photo.picture, alt: "", title: photo.title });
    box.addEventListener("change", () => {
      this.#count();
      this.changed();
    });
    place.append(create("label", { className: "photo" }, box, image));
    this.known.set(photo.id, { ...photo, box, label });
  }

  #choose(wanted, tell = true) {
    [...this.known.values()].forEach((photo, i) => {
      photo.box.checked = wanted(photo, i);
    });
    this.#count();
    if (tell) this.changed();
  }

  // At the limit, what is not chosen cannot be added: the boxes say so before the server would.
  #count() {
    const count = this.chosen().length;
    element("chosen").textContent = count;
    for (const { box } of this.known.values()) box.disabled = !box.checked && count >= this.setting.limits.photos;
  }

  #takeDrops(zone) {
    for (const name of ["dragover", "drop"]) {
      window.addEventListener(name, (event) => event.preventDefault()); // or the browser would leave for the photo
    }
    zone.addEventListener("dragover", () => zone.classList.add("over"));
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      zone.classList.remove("over");
      this.add([...event.dataTransfer.files]);
    });
  }
}
