//! The keys of `[vif.NAME]` given as `KEY=VALUE` on the command line.
//!
//! Settings are written out as TOML and read by the same parser, so they have the same meaning and the same errors.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use toml::de::DeValue;

use super::error::{ConfigError, Problem};
use super::keys::{Alters, Key, NONE};
use super::parse;
use super::section::{Section, document};
use super::values::{PortName, SocketPath, TemplateName};
use super::{VifChanges, VifConfig};

/// The name of the command line's text in diagnostics.
const SOURCE_NAME: &str = "settings";

/// One `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    key: String,
    value: String,
}

/// Text that is no [`Setting`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write KEY=VALUE, for example queues=2")]
pub struct NotASetting;

impl Setting {
    /// The setting that names a template.
    pub fn template(name: &TemplateName) -> Self {
        Self { key: "template".into(), value: name.to_string() }
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// True if it takes the key back to its default.
    pub(super) fn takes_back(&self) -> bool {
        self.value == NONE
    }
}

impl FromStr for Setting {
    type Err = NotASetting;
    fn from_str(text: &str) -> Result<Self, NotASetting> {
        let (key, value) = text.split_once('=').ok_or(NotASetting)?;
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if key.is_empty() || !key.chars().all(bare) {
            return Err(NotASetting);
        }
        Ok(Self { key: key.into(), value: value.into() })
    }
}

impl fmt::Display for Setting {
    /// The setting as a line of TOML. Words that TOML does not know as numbers, truth values, lists
    /// or quoted text are quoted, so that `latency_budget=1ms` needs no quotes of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbatim = DeValue::parse(&self.value).is_ok_and(|value| {
            let value = value.get_ref();
            // A user or a group that is a number is text all the same.
            value.is_integer() && !self.key.starts_with("socket_")
                || value.is_bool()
                || value.is_array()
                || value.is_str()
        });
        if verbatim {
            write!(f, "{} = {}", self.key, self.value.trim())
        } else {
            write!(f, "{} = {}", self.key, toml::Value::String(self.value.clone()))
        }
    }
}

fn as_toml(name: &PortName, settings: &[Setting]) -> String {
    // Only a dot needs the quotes; without them a diagnostic reads better.
    let quote = if name.as_str().contains('.') { "\"" } else { "" };
    let mut text = format!("[vif.{quote}{name}{quote}]\n");
    for setting in settings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{setting}");
    }
    text
}

impl VifConfig {
    /// The interface `name` with `settings`; a template is only a name here. The default socket is
    /// in the directory of `control`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the settings.
    pub fn from_settings(
        name: &PortName,
        settings: &[Setting],
        control: &SocketPath,
    ) -> Result<Self, ConfigError> {
        from_text(&as_toml(name, settings), control)
    }
}

impl VifConfig {
    /// As [`from_settings`](Self::from_settings). If the settings name a template, `base` gives the interface that the
    /// template makes.
    ///
    /// # Errors
    /// That of `base`, or [`ConfigError::Invalid`].
    pub fn under_template<E: From<ConfigError>>(
        name: &PortName,
        settings: &[Setting],
        control: &SocketPath,
        base: impl FnOnce(&TemplateName) -> Result<Self, E>,
    ) -> Result<Self, E> {
        let template = settings.iter().rfind(|it| it.key == "template");
        // The parser refuses a value that is no name.
        match template.and_then(|it| it.value.parse().ok()) {
            None => Ok(Self::from_settings(name, settings, control)?),
            Some(template) => Ok(base(&template)?.with_settings(settings)?),
        }
    }
}

/// The interface whose table is `text`.
pub(super) fn from_text(text: &str, control: &SocketPath) -> Result<VifConfig, ConfigError> {
    parse::single_vif(text, control).map_err(|problems| invalid(text, problems))
}

fn invalid(text: &str, problems: Vec<Problem>) -> ConfigError {
    let problems = problems.into_iter().map(Problem::of_command_line).collect();
    ConfigError::invalid(SOURCE_NAME, text, problems)
}

impl VifChanges {
    /// The changes in `settings`. The value `none` resets a setting to its default.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the settings.
    pub fn from_settings(name: &PortName, settings: &[Setting]) -> Result<Self, ConfigError> {
        let text = as_toml(name, settings);
        let invalid = |problems| invalid(&text, problems);
        let document = document(&text).map_err(invalid)?;
        let mut problems = Vec::new();
        let mut root = Section::new(String::new(), 0..0, document.get_ref());
        let mut changes = Self::default();
        for section in root.subtables("vif", &mut problems) {
            changes = Self::from_section(section, name, &mut problems);
        }
        if problems.is_empty() { Ok(changes) } else { Err(invalid(problems)) }
    }

    fn from_section(
        mut section: Section<'_>,
        name: &PortName,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let changes: Self = Alters::read(&Key::TABLE, &mut section, problems);
        let rows = VifConfig::template().rows();
        for key in rows.iter().filter(|(key, _)| !key.alive).map(|(key, _)| key.name) {
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{key}` cannot change while the interface exists"))
                        .label(span, "fixed when the interface is added")
                        .help(format!(
                            "`weir vif del {name}`, then `weir vif add {name} {key}=...`"
                        )),
                );
            }
        }
        if let Some(span) = section.refuse("template") {
            problems.push(
                Problem::new("`template` cannot change while the interface exists")
                    .label(span, "taken when the interface is added")
                    .help("set the keys that are to differ from the template"),
            );
        }
        if let Some(span) = section.refuse("filter") {
            problems.push(
                Problem::new("filters have a command of their own")
                    .label(span, "not a setting")
                    .help(format!("`weir filter set {name} RULE...`, such as \"tx drop port 25\"")),
            );
        }
        section.finish(problems);
        changes
    }

    /// Changes `vif`. Settings of a replaced policy that the new one ignores go back to their defaults.
    pub fn apply(self, vif: &mut VifConfig) {
        Alters::apply(self, vif);
    }
}
