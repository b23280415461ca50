//! Text from outside on a terminal or in a log. Characters that a terminal obeys, or that hide or
//! reorder others, are written as escapes such as `\u001b`, which JSON reads as the character
//! itself.

use std::borrow::Cow;
use std::fmt::{Debug, Write as _};
use std::io::{self, Write};
use std::process::ExitCode;

use weir_limits::CONFIG_TEXT_SHOWN_MAX;

/// Returns whether `c` has an effect besides being shown: controls (C0, C1, DEL), and characters
/// that join, hide or reorder the text beside them (Unicode's Bidi_Control and the invisible format
/// characters).
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Returns `text` with unprintable characters escaped.
pub fn plain(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Does the same as [`plain`], in at most [`CONFIG_TEXT_SHOWN_MAX`] characters.
pub fn plain_short(text: &str) -> String {
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(CONFIG_TEXT_SHOWN_MAX).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    plain(&short).into_owned()
}

/// Returns `text` with the same number of bytes, so that positions in it stay valid.
pub fn plain_in_place(text: &str) -> Cow<'_, str> {
    let keep = |c: char| !is_unprintable(c) || matches!(c, '\n' | '\t');
    if text.chars().all(keep) {
        return text.into();
    }
    let mut same = String::with_capacity(text.len());
    for c in text.chars() {
        match c.len_utf8() {
            _ if keep(c) => same.push(c),
            3 => same.push(char::REPLACEMENT_CHARACTER),
            len => same.extend(std::iter::repeat_n('?', len)),
        }
    }
    same.into()
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let escaped = |c: char| is_unprintable(c) && !keep(c);
    if !text.chars().any(escaped) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if escaped(c) {
            // Writing to a string cannot fail. All unprintable characters are within the basic plane.
            let _ = write!(plain, "\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    plain.into()
}

/// Characters that the output may contain although a terminal obeys them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obeyed {
    /// Ends of lines and tabs.
    Lines,
    /// The end of the last line of each write, and colours if enabled, for a log's records.
    Record {
        /// The terminal shows colours.
        colours: bool,
    },
}

/// A writer that makes text safe for a terminal.
#[derive(Debug)]
pub struct Plain<W> {
    out: W,
    obeyed: Obeyed,
}

impl<W: Write> Plain<W> {
    /// Puts the filter before `out`.
    pub fn new(out: W, obeyed: Obeyed) -> Self {
        Self { out, obeyed }
    }
}

impl<W: Write> Write for Plain<W> {
    /// Bytes that are not UTF-8 become replacement characters.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        match self.obeyed {
            Obeyed::Lines => {
                let text = escape(&text, |c| matches!(c, '\n' | '\t'));
                self.out.write_all(text.as_bytes())?;
            }
            Obeyed::Record { colours } => {
                let (record, end) = text.strip_suffix('\n').map_or((&*text, ""), |it| (it, "\n"));
                let shown = if colours { coloured(record) } else { plain(record).into_owned() };
                self.out.write_all((shown + end).as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The exit code of a program that ends with `report`, which is printed. `output` is its cause if that was writing the
/// output: a reader that has stopped reading, as in `weir stats | head`, is no failure.
pub fn ended(report: &impl Debug, output: Option<&io::Error>, code: u8) -> ExitCode {
    if output.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", self::report(&format!("{report:?}\n")));
    code.into()
}

/// Returns a report for standard error, with its lines and colours.
pub fn report(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| {
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |it| (it, "\n"));
            coloured(line) + end
        })
        .collect()
}

/// Escapes unprintable characters except those of colours (ECMA-48 SGR), which change only the
/// appearance of text.
fn coloured(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\x1b[") {
        let (before, sequence) = rest.split_at(at);
        shown += &plain(before);
        let digits = |c: char| c.is_ascii_digit() || c == ';' || c == ':';
        let end =
            sequence.get(2..).and_then(|from| from.find(|c| !digits(c))).map_or(0, |it| it + 2);
        if sequence.get(end..).is_some_and(|end| end.starts_with('m')) && end > 0 {
            let (colour, after) = sequence.split_at(end + 1);
            shown += colour;
            rest = after;
        } else {
            let (escape, after) = sequence.split_at(1);
            shown += &plain(escape);
            rest = after;
        }
    }
    shown + &plain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;title\x07\r\u{9b}2J\u{202e}b\u{200b}\x7f";

    #[test]
    fn what_a_terminal_obeys_is_written_out_and_json_reads_it_back() {
        let text = plain(HOSTILE);
        assert_eq!(text, "a\\u001b]0;title\\u0007\\u000d\\u009b2J\\u202eb\\u200b\\u007f");
        assert_eq!(serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap(), HOSTILE);
        assert_eq!(plain("Grüße 日本 — ok"), "Grüße 日本 — ok");
    }

    #[test]
    fn places_stay_where_they_are() {
        let text = format!("{HOSTILE}\n\tx");
        let same = plain_in_place(&text);
        assert_eq!(same.len(), text.len());
        assert!(!same.chars().any(|c| is_unprintable(c) && c != '\n' && c != '\t'));
        assert!(same.ends_with("\n\tx"));
    }

    #[test]
    fn a_log_record_is_one_line_whose_only_escapes_are_colours() {
        let shown = |text: &str, colours| {
            let mut out = Vec::new();
            Plain::new(&mut out, Obeyed::Record { colours }).write_all(text.as_bytes()).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown("name=x\nforged\x1b[31m\n", false), "name=x\\u000aforged\\u001b[31m\n");
        assert_eq!(
            shown("\x1b[1;31mred\x1b[0m \x1b[2J\x1b\x1b[\n", true),
            "\x1b[1;31mred\x1b[0m \\u001b[2J\\u001b\\u001b[\n"
        );
    }

    #[test]
    fn long_text_is_cut() {
        let short = plain_short(&"x".repeat(1_000_000));
        assert_eq!(short.chars().count(), CONFIG_TEXT_SHOWN_MAX + 1);
    }
}
