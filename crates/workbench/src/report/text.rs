//! Text in SVG and HTML, and colours and styles of plots and pages, light and dark.

use std::fmt;

/// Text escaped for an element or a quoted attribute.
pub struct Escaped<'t>(pub &'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                // XML has no form for control characters.
                _ if letter.is_control() => f.write_str(" ")?,
                _ => write!(f, "{letter}")?,
            }
        }
        Ok(())
    }
}

/// Returns the approximate width of text in a usual sans-serif font, which is seldom exceeded.
pub fn width(text: &str, size: f64) -> f64 {
    let of = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | 'I' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.95,
        'A'..='Z' => 0.72,
        _ => 0.6,
    };
    size * text.chars().map(of).sum::<f64>()
}

/// Splits text at spaces into lines of at most `width_max`. A longer word gets its own line.
pub fn lines(text: &str, size: f64, width_max: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= width_max => {
                *line = format!("{line} {word}");
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts text to `letters_max` letters.
pub fn cut(text: &str, letters_max: usize) -> String {
    if text.chars().count() <= letters_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters_max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Colours on a light background. The series have the colours of Okabe and Ito, which colour-blind readers can
/// distinguish, darkened where they would be faint: each has a contrast of 3:1 or more with the page, as WCAG 2.2
/// (1.4.11) requires.
pub const LIGHT: &str = "--page:#fff;--ground:#f4f5f7;--ink:#1d2126;--soft:#59616b;--line:#dfe2e6;\
    --link:#0b5cad;--good:#1b7f4b;--part:#8a5a00;--bad:#b3372f;--measured:#a0116e;\
    --s0:#0072b2;--s1:#d55e00;--s2:#00855f;--s3:#b0508a;--s4:#8f6b00;--s5:#2f8fc8;--s6:#6b6f75;--s7:#7a4a1e;";

/// Colours on a dark background.
pub const DARK: &str = "--page:#191d23;--ground:#101317;--ink:#e7eaee;--soft:#a9b2bd;--line:#333a44;\
    --link:#7db8f5;--good:#4cc38a;--part:#e3b341;--bad:#ff8a80;--measured:#ff8ad8;\
    --s0:#56b4e9;--s1:#ff8f4d;--s2:#35cf9f;--s3:#e79ac7;--s4:#e8c04a;--s5:#a9dcff;--s6:#b6bcc4;--s7:#d0a27c;";

/// Number of colours for series. Further series repeat the colours.
pub const COLOURS: usize = 8;

/// Returns the style of a plot that is in a separate file.
pub fn standalone() -> String {
    format!(
        "<style>\nsvg {{ {LIGHT} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}\n\
         {PLOT}</style>\n"
    )
}

/// Styles of plots.
pub const PLOT: &str = include_str!("plot.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_a_text() {
        let text = Escaped("<script>\"1\" & 2\u{1}</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&quot;1&quot; &amp; 2 &lt;/script&gt;");
    }

    #[test]
    fn lines_are_cut_at_spaces() {
        assert_eq!(lines("a guest of its own", 10.0, 50.0), ["a guest", "of its", "own"]);
        assert_eq!(lines("uninterruptible", 10.0, 20.0), ["uninterruptible"]);
        assert_eq!(lines(" ", 10.0, 20.0), [""; 0]);
        assert_eq!(cut("uninterruptible", 6), "unint…");
        assert_eq!(cut("short", 6), "short");
    }
}
