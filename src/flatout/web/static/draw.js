// A canvas on which a digit is drawn, white on black. The drawing becomes the file of its form.

// In pictures of MNIST a digit fills 20 of 28 pixels, and its center of mass is in the middle.
// Source: http://yann.lecun.com/exdb/mnist/
// In smaller ones, such as those of scikit-learn's digits, it fills the picture.
const share = (size) => (size < 28 ? 0.95 : 20 / 28);

function inked(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let [left, top, right, bottom, mass, x, y] = [Infinity, Infinity, -1, -1, 0, 0, 0];
  for (let row = 0; row < canvas.height; row++) {
    for (let column = 0; column < canvas.width; column++) {
      const ink = data[4 * (row * canvas.width + column)];
      if (!ink) continue;
      [left, right] = [Math.min(left, column), Math.max(right, column)];
      [top, bottom] = [Math.min(top, row), Math.max(bottom, row)];
      mass += ink;
      x += ink * column;
      y += ink * row;
    }
  }
  return mass ? { size: Math.max(right - left, bottom - top) + 1, x: x / mass, y: y / mass } : null;
}

function centered(canvas) {
  const ink = inked(canvas);
  if (!ink) return null;
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [canvas.width, canvas.height];
  const pen = picture.getContext("2d");
  pen.fillRect(0, 0, picture.width, picture.height);
  const scale = (share(canvas.dataset.size) * picture.width) / ink.size;
  pen.setTransform(scale, 0, 0, scale, picture.width / 2 - scale * ink.x, picture.height / 2 - scale * ink.y);
  pen.drawImage(canvas, 0, 0);
  return picture;
}

function prepare(form) {
  const canvas = form.querySelector("canvas");
  const input = form.querySelector('input[type="file"]');
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  const clear = () => {
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    input.value = "";
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
  };
  const draw = (to) => {
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...to);
    pen.stroke();
    last = to;
  };
  const keep = () => {
    if (!last) return;
    last = null;
    const picture = centered(canvas);
    if (!picture) return;
    // At once, unlike toBlob: the form may be sent next.
    const bytes = Uint8Array.from(atob(picture.toDataURL().split(",")[1]), (sign) => sign.charCodeAt(0));
    const files = new DataTransfer();
    files.items.add(new File([bytes], "drawing.png", { type: "image/png" }));
    input.files = files.files;
  };
  [pen.strokeStyle, pen.lineWidth, pen.lineCap, pen.lineJoin] = ["#fff", canvas.width / 14, "round", "round"];
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    draw(last);
  });
  canvas.addEventListener("pointermove", (event) => last && draw(place(event)));
  canvas.addEventListener("pointerup", keep);
  canvas.addEventListener("pointercancel", keep);
  form.querySelector("[data-clear]").addEventListener("click", clear);
  clear();
  form.hidden = false;
}

document.querySelectorAll("form[data-drawing]").forEach(prepare);
