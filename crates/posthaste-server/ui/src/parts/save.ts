// A file made of what was answered: a link to the API would not carry the session.

export function save(content: BlobPart, name: string): void {
  const file = URL.createObjectURL(new Blob([content]));
  const link = document.createElement("a");
  link.href = file;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(file), 10_000);
}
