//! Colours and styles of plots and pages, light and dark.

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
