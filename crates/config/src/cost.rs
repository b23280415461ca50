//! The memory that it takes to read a configuration, counted before it is read: a text of one megabyte can take
//! hundreds.
//!
//! The parser keeps each token, and a tree of keys and values. The lexer alone, which keeps nothing, is enough to
//! count both.

use toml_parser::lexer::TokenKind;
use toml_parser::{Source, Span};
use weir_limits as limits;

use super::error::Problem;

/// Bytes of a token and of the event that the parser makes of it.
const TOKEN: u64 = 52;
/// Bytes of a table: the first node of its map. Each dot of a key may begin one.
const TABLE: u64 = 1150;
/// Bytes of a key and its value in the node of a map, and of the first values of an array.
const ENTRY: u64 = 190;
/// Bytes of one more value of an array, which grows by doubling.
const ITEM: u64 = 100;
/// Bytes of values that an interface takes from its template; [`limits::TEMPLATES_COPIED_MAX`] bounds long ones.
const TEMPLATE: u64 = 400;
/// Copies of the text: in the request, as text, in an error, and as its longest string.
const COPIES: u64 = 4;
/// The factor for an editor, which also keeps the spaces and comments of each value.
const EDITING: u64 = 2;

/// The most bytes of memory that it takes to read `text`.
pub fn to_read(text: &str) -> u64 {
    let of_tokens = Source::new(text).lex().map(|token| {
        TOKEN
            + match token.kind() {
                TokenKind::LeftCurlyBracket | TokenKind::Dot => TABLE,
                TokenKind::Equals | TokenKind::LeftSquareBracket => ENTRY,
                TokenKind::Comma => ITEM,
                TokenKind::Atom if is_template(text, token.span()) => TEMPLATE,
                _ => 0,
            }
    });
    COPIES * text.len() as u64 + of_tokens.sum::<u64>()
}

/// True for the key `template` of an interface.
fn is_template(text: &str, span: Span) -> bool {
    text.get(span.start()..span.end()) == Some("template")
}

/// The most bytes of memory that it takes to read `text` and to write it anew.
pub fn to_edit(text: &str) -> u64 {
    EDITING * to_read(text)
}

/// Refuses a text that takes more memory than weir allows anybody.
pub(super) fn check(text: &str) -> Result<(), Problem> {
    match to_read(text) > limits::CONFIG_COST_BYTES_MAX {
        false => Ok(()),
        true => Err(Problem::new("it has too many keys and values")
            .help("run a second weir for some of the ports and join them with an uplink")),
    }
}

/// Gives the memory that this process has freed back to the kernel. glibc's allocator otherwise
/// keeps freed memory for as long as memory after it is in use: most of the 90 MB that a
/// configuration can take. Other allocators keep less.
#[allow(unsafe_code)]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: neither function takes a pointer, and both lock what they change.
    unsafe {
        // From now on whatever is larger is unmapped when it is freed: an answer with all counters, for example.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
        libc::malloc_trim(0);
    }
}
