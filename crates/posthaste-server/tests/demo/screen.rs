//! What a terminal of 80 columns would show: as much of one as the demo needs.

/// Columns.
pub(crate) const COLUMNS: usize = 80;

/// Rows that were ever written, those that scrolled away included.
#[derive(Default)]
pub(crate) struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// Begun and not complete: ESC [ and parameters.
    sequence: Option<String>,
    /// Whether there were colours.
    pub(crate) colours: bool,
    /// What is not understood; a test must not pass by not looking.
    pub(crate) unknown: Vec<String>,
}

impl Screen {
    pub(crate) fn feed(&mut self, text: &str) {
        for character in text.chars() {
            match self.sequence.take() {
                Some(begun) => self.go_on(begun, character),
                None => self.put(character),
            }
        }
    }

    fn put(&mut self, character: char) {
        match character {
            '\x1b' => self.sequence = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            _ => {
                // Like a real one: the line breaks when the 81st character comes, not with the 80th.
                if self.column == COLUMNS {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                let (row, column) = (self.row, self.column);
                self.line(row)[column] = character;
                self.column += 1;
            }
        }
    }

    fn go_on(&mut self, mut begun: String, character: char) {
        begun.push(character);
        if !character.is_ascii_alphabetic() {
            self.sequence = Some(begun);
            return;
        }
        let number = begun[1..begun.len() - 1].parse().unwrap_or(1);
        match character {
            'A' => self.row = self.row.saturating_sub(number),
            'B' => self.row += number,
            'K' if number == 2 => {
                let row = self.row;
                self.line(row).fill(' ');
            }
            'm' => self.colours = true,
            _ => self.unknown.push(begun),
        }
    }

    fn line(&mut self, row: usize) -> &mut Vec<char> {
        if self.rows.len() <= row {
            self.rows.resize(row + 1, vec![' '; COLUMNS]);
        }
        &mut self.rows[row]
    }

    /// Its lines, without the empty end of each.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}
