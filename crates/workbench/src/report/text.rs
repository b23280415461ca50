//! Text in SVG and HTML.

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
