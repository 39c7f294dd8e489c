// The page begins here.

import { render } from "preact";
import "./style/colors.css";
import "./style/frame.css";
import "./style/parts.css";
import "./style/table.css";
import "./style/dialog.css";
import "./style/pages.css";
import { Frame } from "./frame.tsx";
import { watchAddress } from "./place/here.ts";
import { watchKeys } from "./keys/keys.ts";

watchAddress();
watchKeys();
const page = document.getElementById("page");
if (page !== null) render(<Frame />, page);
