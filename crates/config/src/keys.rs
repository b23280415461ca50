//! Tables of keys. Each key is declared once, by [`keys!`]: its name, type, default and meaning,
//! whether it can change, and which interfaces can have it. The struct, the parser, the difference,
//! `vif set` and `vif show` come from there.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use utoipa::ToSchema;

use super::error::Problem;
use super::section::{Fault, FromToml, Section};

/// The reason why most keys of `[switch]` are fixed.
pub(crate) const NEEDS_A_RESTART: &str = "needs a restart";

/// The word that resets a setting to its default.
pub(super) const NONE: &str = "none";

/// One key of a table of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key's name in the file.
    pub name: &'static str,
    /// The meaning of the key, in one sentence.
    pub says: &'static str,
    /// Whether the key can change while weir runs.
    pub alive: bool,
    /// Why the key cannot change, or when a change takes effect; `NAME` stands for the table's name.
    pub note: Option<&'static str>,
    /// The reason why `[xen]` cannot set the key for all Xen guests.
    pub xen: Option<&'static str>,
    /// Whether the key can be set for a single Xen guest.
    pub of_one_xen: bool,
    /// Whether the key holds for the copies that a mirror gets.
    pub of_copies: bool,
    /// The reason why a template cannot have the key.
    pub template: Option<&'static str>,
    /// Keys that give the same setting another kind of value, each with its sentence.
    others: &'static [(&'static str, &'static str)],
}

/// A key with its value as text, as it would be in the file; without a value where the file need
/// not name the key.
pub(crate) type Row = (Key, Option<String>);
pub(crate) type Rows = Vec<Row>;

impl Key {
    /// The key of a field that is a table of its own.
    pub(crate) const TABLE: Self = Self::new("", "");

    /// A key that can change at once.
    pub(crate) const fn new(name: &'static str, says: &'static str) -> Self {
        Self {
            name,
            says: says.trim_ascii_start(),
            alive: true,
            note: None,
            xen: None,
            of_one_xen: true,
            of_copies: true,
            template: None,
            others: &[],
        }
    }

    /// The key's name differs from the field's.
    pub(crate) const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// The key cannot change while weir runs.
    pub(crate) const fn fixed(self, why: &'static str) -> Self {
        Self { alive: false, note: Some(why), ..self }
    }

    /// The key can change, and the guest sees the change later.
    pub(crate) const fn later(self, when: &'static str) -> Self {
        Self { note: Some(when), ..self }
    }

    /// `[xen]` has another setting in place of this key.
    pub(crate) const fn not_of_xen(self, instead: &'static str) -> Self {
        Self { xen: Some(instead), of_one_xen: false, ..self }
    }

    /// `[xen]` cannot set the key for all guests, but it can for each.
    pub(crate) const fn of_each_xen(self, instead: &'static str) -> Self {
        Self { xen: Some(instead), ..self }
    }

    /// Each interface has the key for itself.
    pub(crate) const fn not_of_templates(self, why: &'static str) -> Self {
        Self { template: Some(why), ..self }
    }

    /// Other keys are for the same setting.
    pub(crate) const fn beside(self, others: &'static [(&'static str, &'static str)]) -> Self {
        Self { others, ..self }
    }

    /// The key, and the others for the same setting.
    pub(crate) fn with_others(self) -> impl Iterator<Item = Self> {
        let other = move |&(name, says)| Self { name, says, ..self };
        std::iter::once(self).chain(self.others.iter().map(other))
    }

    /// A mirror cannot have the key.
    pub(crate) const fn not_of_copies(self) -> Self {
        Self { of_copies: false, ..self }
    }
}

/// The value of one key, or of a group of keys.
pub(crate) trait Value: Clone + PartialEq {
    /// Takes the values that the section has, and keeps the others.
    fn read(&mut self, key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>);

    /// Takes the section's values of the keys that `which` chooses. A table asks for each of its keys.
    fn read_chosen(
        &mut self,
        key: &Key,
        section: &mut Section<'_>,
        which: fn(&Key) -> bool,
        problems: &mut Vec<Problem>,
    ) {
        if which(key) {
            self.read(key, section, problems);
        }
    }

    /// Changes the keys that `which` chooses to their values in `to`; with `from`, only keys with the value in `from`.
    fn change(&mut self, key: &Key, which: &dyn Fn(&Key) -> bool, from: Option<&Self>, to: &Self) {
        if which(key) && from.is_none_or(|from| self == from) {
            self.clone_from(to);
        }
    }

    /// Adds its rows.
    fn show(&self, key: Key, rows: &mut Rows);

    /// The name in the file of the key whose field has this path.
    fn key_at(key: &Key, path: &str) -> Option<&'static str> {
        path.is_empty().then_some(key.name)
    }
}

impl<T: FromToml + Clone + PartialEq + Display> Value for T {
    fn read(&mut self, key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        if let Some(value) = section.value(key.name, problems) {
            *self = value;
        }
    }

    fn show(&self, key: Key, rows: &mut Rows) {
        rows.push((key, Some(self.to_string()).filter(|text| !text.is_empty())));
    }
}

impl<T: FromToml + Clone + PartialEq + Display> Value for Option<T> {
    fn read(&mut self, key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        *self = section.value(key.name, problems).or(self.take());
    }

    fn show(&self, key: Key, rows: &mut Rows) {
        rows.push((key, self.as_ref().map(T::to_string)));
    }
}

/// A change of an optional setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change<T> {
    /// The setting stays as it is.
    #[default]
    Keep,
    /// The setting gets its default.
    Clear,
    /// The setting gets this value.
    Set(T),
}

impl<T> Change<T> {
    /// Clears this setting too if `other` is cleared, unless this setting gets a new value.
    pub(super) fn clear_with<U>(&mut self, other: &Change<U>) {
        if let (Self::Keep, Change::Clear) = (&self, other) {
            *self = Self::Clear;
        }
    }
}

impl<T: FromToml> FromToml for Change<T> {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        match value.get_ref().as_str() {
            Some(NONE) => Ok(Self::Clear),
            _ => T::from_toml(value).map(Self::Set),
        }
    }
}

/// The part of a `T` that `weir vif set` changes.
pub(crate) trait Alters<T>: Sized {
    /// Reads the change from a section; no change if the section does not have the key.
    fn read(key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self;

    /// Makes the change.
    fn apply(self, to: &mut T);

    /// The keys that are read. For a table, these are the keys inside it.
    fn keys(key: Key) -> Vec<Key> {
        vec![key]
    }
}

impl<T: FromToml> Alters<T> for Option<T> {
    fn read(key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        section.value(key.name, problems)
    }

    fn apply(self, to: &mut T) {
        if let Some(value) = self {
            *to = value;
        }
    }
}

impl<T: FromToml> Alters<Option<T>> for Change<T> {
    fn read(key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        section.take_or(key.name, Self::Keep, problems)
    }

    fn apply(self, to: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *to = None,
            Self::Set(value) => *to = Some(value),
        }
    }
}

/// A change to `none` sets the default, which is no value.
impl<T: FromToml + Default> Alters<T> for Change<T> {
    fn read(key: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        section.take_or(key.name, Self::Keep, problems)
    }

    fn apply(self, to: &mut T) {
        match self {
            Self::Keep => {}
            Self::Clear => *to = T::default(),
            Self::Set(value) => *to = value,
        }
    }
}

/// Declares a table of keys, and what `weir vif set` changes of it.
///
/// An entry is a sentence, `field: Type => Change = default, [columns];`. Columns are methods of [`Key`]. An entry
/// without a `Change` is not for `weir vif set`. A field whose type is a table stands for the keys of that table.
macro_rules! keys {
    (
        $(#[$doc:meta])* pub struct $table:ident($($own:tt)*) $keys:tt
        $($(#[$changes_doc:meta])* pub struct $changes:ident;)?
    ) => {
        $crate::keys::keys! { @table $(#[$doc])* $table ($($own)*) $keys }
        $crate::keys::keys! { @defaults $table ($($own)*) $keys }
        $($crate::keys::keys! { @changes $(#[$changes_doc])* $changes of $table $keys })?
    };
    (
        $(#[$doc:meta])* pub struct $table:ident $keys:tt
        $($(#[$changes_doc:meta])* pub struct $changes:ident;)?
    ) => {
        $crate::keys::keys! { @table $(#[$doc])* $table () $keys }
        $crate::keys::keys! { @default $table $keys }
        $($crate::keys::keys! { @changes $(#[$changes_doc])* $changes of $table $keys })?
    };
    (
        @table $(#[$doc:meta])* $table:ident ($($(#[$own_doc:meta])* $own:ident: $own_type:ty)?) {
            $(
                #[doc = $says:tt]
                $(#[$attribute:meta])*
                $field:ident: $type:ty $(=> $change:ty)? = $default:expr, $columns:tt;
            )+
        }
    ) => {
        $(#[$doc])*
        pub struct $table {
            $($(#[$own_doc])* pub $own: $own_type,)?
            $(#[doc = $says] $(#[$attribute])* pub $field: $type,)+
        }

        impl $table {
            /// Each key with its value.
            pub(crate) fn rows(&self) -> $crate::keys::Rows {
                let mut rows = Vec::new();
                $(
                    let key = $crate::keys::keys!(@key $field $says $columns);
                    $crate::keys::Value::show(&self.$field, key, &mut rows);
                )+
                rows
            }
        }

        impl $crate::keys::Value for $table {
            fn read(
                &mut self,
                key: &$crate::keys::Key,
                section: &mut $crate::section::Section<'_>,
                problems: &mut Vec<$crate::error::Problem>,
            ) {
                $crate::keys::Value::read_chosen(self, key, section, |_| true, problems);
            }

            fn read_chosen(
                &mut self,
                _: &$crate::keys::Key,
                section: &mut $crate::section::Section<'_>,
                which: fn(&$crate::keys::Key) -> bool,
                problems: &mut Vec<$crate::error::Problem>,
            ) {
                $(
                    let key = $crate::keys::keys!(@key $field $says $columns);
                    let field = &mut self.$field;
                    $crate::keys::Value::read_chosen(field, &key, section, which, problems);
                )+
            }

            fn change(
                &mut self,
                _: &$crate::keys::Key,
                which: &dyn Fn(&$crate::keys::Key) -> bool,
                from: Option<&Self>,
                to: &Self,
            ) {
                $(
                    let key = $crate::keys::keys!(@key $field $says $columns);
                    let before = from.map(|from| &from.$field);
                    $crate::keys::Value::change(&mut self.$field, &key, which, before, &to.$field);
                )+
            }

            fn show(&self, _: $crate::keys::Key, rows: &mut $crate::keys::Rows) {
                rows.extend(self.rows());
            }

            fn key_at(_: &$crate::keys::Key, path: &str) -> Option<&'static str> {
                let (field, rest) = path.split_once('.').unwrap_or((path, ""));
                match field {
                    $(stringify!($field) => {
                        let key = $crate::keys::keys!(@key $field $says $columns);
                        <$type as $crate::keys::Value>::key_at(&key, rest)
                    })+
                    _ => None,
                }
            }
        }
    };
    (
        @defaults $table:ident ($(#[$own_doc:meta])* $own:ident: $own_type:ty) {
            $(
                $(#[$attribute:meta])*
                $field:ident: $type:ty $(=> $change:ty)? = $default:expr, $columns:tt;
            )+
        }
    ) => {
        impl $table {
            /// Each key as by default.
            fn defaults($own: $own_type) -> Self {
                Self { $own, $($field: $default,)+ }
            }

            /// Reads the keys of the section that `which` chooses.
            pub(crate) fn read_keys(
                &mut self,
                section: &mut $crate::section::Section<'_>,
                which: fn(&$crate::keys::Key) -> bool,
                problems: &mut Vec<$crate::error::Problem>,
            ) {
                let table = &$crate::keys::Key::TABLE;
                $crate::keys::Value::read_chosen(self, table, section, which, problems);
            }

            /// The name in the file of the key whose field has this path, such as `sharing.rate`.
            pub fn key_at(path: &str) -> Option<&'static str> {
                <Self as $crate::keys::Value>::key_at(&$crate::keys::Key::TABLE, path)
            }

            /// Takes the values of `now` for the keys that cannot change.
            pub(crate) fn with_fixed_of(mut self, now: &Self) -> Self {
                let fixed = |key: &$crate::keys::Key| !key.alive;
                $crate::keys::Value::change(&mut self, &$crate::keys::Key::TABLE, &fixed, None, now);
                self
            }
        }
    };
    (
        @default $table:ident {
            $(
                $(#[$attribute:meta])*
                $field:ident: $type:ty $(=> $change:ty)? = $default:expr, $columns:tt;
            )+
        }
    ) => {
        impl Default for $table {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
    (
        @changes $(#[$doc:meta])* $changes:ident of $table:ident {
            $(
                #[doc = $says:tt]
                $(#[$attribute:meta])*
                $field:ident: $type:ty $(=> $change:ty)? = $default:expr, $columns:tt;
            )+
        }
    ) => {
        $(#[$doc])*
        #[derive(Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $changes {
            $($(#[doc = $says] pub $field: $change,)?)+
        }

        impl $crate::keys::Alters<$table> for $changes {
            fn read(
                _: &$crate::keys::Key,
                section: &mut $crate::section::Section<'_>,
                problems: &mut Vec<$crate::error::Problem>,
            ) -> Self {
                Self {
                    $($($field: {
                        let key = $crate::keys::keys!(@key $field $says $columns);
                        <$change as $crate::keys::Alters<$type>>::read(&key, section, problems)
                    },)?)+
                }
            }

            fn apply(mut self, to: &mut $table) {
                self.settle(to);
                $($(<$change as $crate::keys::Alters<$type>>::apply(self.$field, &mut to.$field);)?)+
            }

            fn keys(_: $crate::keys::Key) -> Vec<$crate::keys::Key> {
                let mut keys = Vec::new();
                $($(
                    let key = $crate::keys::keys!(@key $field $says $columns);
                    keys.extend(<$change as $crate::keys::Alters<$type>>::keys(key));
                )?)+
                keys
            }
        }
    };
    (@key $field:ident $says:tt [$($column:ident($($value:expr)?)),*]) => {
        const { $crate::keys::Key::new(stringify!($field), $says)$(.$column($($value)?))* }
    };
}

pub(crate) use keys;

#[cfg(test)]
mod tests;
