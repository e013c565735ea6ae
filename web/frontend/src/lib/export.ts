/** Tables as CSV and JSON files, made in the browser. */

export type Cell = string | number | boolean | null | undefined;

export interface ExportColumn<Row> {
  name: string;
  value: (row: Row) => Cell;
}

/** Quote a cell as RFC 4180 has it. A text that a spreadsheet would run as a formula gets a quote in front. */
function quoted(cell: Cell): string {
  if (cell == null) return "";
  const text = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv<Row>(rows: readonly Row[], columns: readonly ExportColumn<Row>[]): string {
  const lines = [columns.map((column) => quoted(column.name)), ...rows.map((row) => columns.map((column) => quoted(column.value(row))))];
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

export function download(name: string, type: string, content: BlobPart): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
