//! Chat templates: a conversation to the one text that the model was trained on. Not the template language, which is in
//! `jinja`.

use super::files::TextFiles;
use super::jinja;
use crate::error::{Error, Result};
use minijinja::Environment;
use minijinja::value::Value;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// One message of a conversation, in the shape of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or what else the template knows.
    pub role: String,
    /// Text, a list of parts, or null.
    #[serde(default)]
    pub content: serde_json::Value,
    /// Whatever else the template reads: `tool_calls`, `name`, `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, serde_json::Value>,
}

impl ChatMessage {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into().into(), extra: Map::new() }
    }
}

/// What to render besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of an assistant message, for the model to go on.
    pub add_generation_prompt: bool,
    /// Tool definitions; `None` is what templates take for no tools.
    pub tools: Option<serde_json::Value>,
    /// Variables of this template, such as `enable_thinking`.
    pub kwargs: Map<String, serde_json::Value>,
    /// Which of the model's templates. `None` takes `tool_use` if there are tools and a template of that name, else the
    /// default one.
    pub template: Option<String>,
}

/// A model's compiled templates, of which most have one. Clones share them.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// By name; why it cannot be used, if so.
    names: BTreeMap<String, Option<Error>>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// Names that mean something, as in transformers.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Compiles `source`. The tokens are what `bos_token` and `eos_token` print.
    ///
    /// # Errors
    /// Source that is not Jinja or needs what is not supported, with the line.
    pub fn new(source: &str, bos_token: Option<&str>, eos_token: Option<&str>) -> Result<Self> {
        Self::with_clock(source, bos_token, eos_token, SystemTime::now)
    }

    /// Like [`new`](Self::new), with the time that `strftime_now` prints (in UTC).
    ///
    /// # Errors
    /// As for `new`.
    pub fn with_clock(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
        clock: fn() -> SystemTime,
    ) -> Result<Self> {
        let mut template = Self::compile([(DEFAULT, source)], bos_token, eos_token, clock);
        match template.names.get_mut(DEFAULT).and_then(Option::take) {
            Some(error) => Err(error),
            None => Ok(template),
        }
    }

    /// Compiles all templates that a model came with; `None` if there are none.
    ///
    /// # Errors
    /// As for `new`, about the default template. Another one that cannot be used is an error once it is chosen.
    pub fn from_files(files: &TextFiles) -> Option<Result<Self>> {
        let default = files.chat_template.iter().map(|source| (DEFAULT, source.as_str()));
        let named = files.named_templates.iter().map(|(name, source)| (name.as_str(), source.as_str()));
        let mut sources = named.chain(default).peekable();
        sources.peek()?;
        let (bos_token, eos_token) = (files.bos_token.as_deref(), files.eos_token.as_deref());
        let mut template = Self::compile(sources, bos_token, eos_token, SystemTime::now);
        match template.names.get_mut(DEFAULT).and_then(Option::take) {
            Some(error) => Some(Err(error)),
            None => Some(Ok(template)),
        }
    }

    fn compile<'a>(
        sources: impl IntoIterator<Item = (&'a str, &'a str)>,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
        clock: fn() -> SystemTime,
    ) -> Self {
        let mut environment = jinja::environment(clock);
        let mut names = BTreeMap::new();
        for (name, source) in sources {
            let added = environment.add_template_owned(shown(name), jinja::without_generation_blocks(source));
            let fault = added.err().map(|error| {
                Error::load(format!(
                    "the model's {} cannot be used: {error}; give the prompt as text instead",
                    shown(name)
                ))
            });
            names.insert(name.to_owned(), fault);
        }
        let [bos_token, eos_token] = [bos_token, eos_token].map(|token| token.map(str::to_owned));
        Self { environment: Arc::new(environment), names, bos_token, eos_token }
    }

    /// Names of the model's templates, in alphabetical order. Most models have one, `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The text of `messages`. It holds all special tokens, so encode it without adding any.
    ///
    /// # Errors
    /// Messages that the template refuses (with its own words) or cannot take; a template that is not there.
    pub fn render(&self, messages: &[ChatMessage], options: &RenderOptions) -> Result<String> {
        let mut variables = Map::new();
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if let Some(token) = token {
                variables.insert(name.into(), token.clone().into());
            }
        }
        variables.extend(options.kwargs.clone());
        let messages = serde_json::to_value(messages).map_err(|error| Error::config(format!("messages: {error}")))?;
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), options.tools.clone().unwrap_or_default());
        variables.entry("documents").or_insert_with(Default::default);
        variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        let name = self.choose(options)?;
        let template = self.environment.get_template(&shown(name));
        let template = template.map_err(|error| Error::bug(format!("{}: {error}", shown(name))))?;
        template.render(Value::from_serialize(&variables)).map_err(|error| jinja::explain(&error))
    }

    fn choose<'a>(&'a self, options: &'a RenderOptions) -> Result<&'a str> {
        let name = match &options.template {
            Some(name) => name.as_str(),
            None if options.tools.is_some() && self.names.contains_key(TOOL_USE) => TOOL_USE,
            None => DEFAULT,
        };
        match self.names.get(name) {
            Some(None) => Ok(name),
            Some(Some(fault)) => Err(fault.clone()),
            None => {
                let names: Vec<_> = self.names().collect();
                Err(Error::config(format!("the model has no chat template {name:?}; it has {}", names.join(", "))))
            }
        }
    }
}

/// What messages call a template.
fn shown(name: &str) -> String {
    if name == DEFAULT { "chat template".into() } else { format!("chat template {name}") }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("names", &self.names)
            .field("bos_token", &self.bos_token)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, UNIX_EPOCH};

    fn render(source: &str, kwargs: serde_json::Value) -> Result<String> {
        let template =
            ChatTemplate::with_clock(source, None, Some("</s>"), || UNIX_EPOCH + Duration::from_secs(86_400))?;
        let kwargs = kwargs.as_object().unwrap().clone();
        let messages = [ChatMessage::new("user", "<a> & 'b'"), ChatMessage::new("assistant", "c")];
        template.render(&messages, &RenderOptions { kwargs, ..RenderOptions::default() })
    }

    #[test]
    fn json_is_written_as_python_does() {
        let value =
            json!({"v": {"z": [1, 2.0, 1e20], "a": {"é": "<&'\"\n\u{1f}", "n": null, "t": true}, "e": [], "o": {}}});
        let one_line = r#"{"z": [1, 2.0, 1e+20], "a": {"é": "<&'\"\n\u001f", "n": null, "t": true}, "e": [], "o": {}}"#;
        assert_eq!(render("{{ v | tojson }}", value.clone()).unwrap(), one_line);
        // From CPython: json.dumps(v, indent=2, ensure_ascii=True, sort_keys=True).
        let sorted = "{\n  \"a\": {\n    \"n\": null,\n    \"t\": true,\n    \"\\u00e9\": \"<&'\\\"\\n\\u001f\"\n  },\n  \
                      \"e\": [],\n  \"o\": {},\n  \"z\": [\n    1,\n    2.0,\n    1e+20\n  ]\n}";
        let filter = "{{ v | tojson(indent=2, ensure_ascii=true, sort_keys=true) }}";
        assert_eq!(render(filter, value.clone()).unwrap(), sorted);
        let tight = render("{{ {'a': [1, 2], 'b': none} | tojson(separators=(',', ':')) }}", value).unwrap();
        assert_eq!(tight, r#"{"a":[1,2],"b":null}"#);
        assert!(render("{{ missing | tojson }}", json!({})).unwrap_err().to_string().contains("undefined"));
    }

    #[test]
    fn values_print_as_in_python() {
        assert_eq!(
            render("{{ none }} {{ true }} {{ missing }}|{{ [1, 'a'] }}", json!({})).unwrap(),
            "None True |[1, 'a']"
        );
        assert_eq!(
            render("{{ messages[0].content }}{{ eos_token }}{{ bos_token }}", json!({})).unwrap(),
            "<a> & 'b'</s>"
        );
    }

    #[test]
    fn what_the_caller_leaves_out_is_none() {
        let source =
            "{{ tools is none }} {{ documents is none }} {{ bos_token is defined }} {{ add_generation_prompt }}";
        assert_eq!(render(source, json!({})).unwrap(), "True True False False");
        // Variables may replace the special tokens, as in transformers, but not the conversation.
        assert_eq!(
            render("{{ eos_token }}{{ messages | length }}", json!({"eos_token": "!", "messages": []})).unwrap(),
            "!2"
        );
    }

    #[test]
    fn tools_choose_the_template_for_them() {
        let named = [("tool_use", "tools: {{ tools | length }}"), ("rag", "rag"), ("broken", "{% nonsense %}")];
        let mut files = TextFiles {
            chat_template: Some("plain".into()),
            named_templates: named.map(|(name, source)| (name.into(), source.into())).into(),
            ..TextFiles::default()
        };
        let template = ChatTemplate::from_files(&files).unwrap().unwrap();
        assert_eq!(template.names().collect::<Vec<_>>(), ["broken", "default", "rag", "tool_use"]);
        let render = |template: &ChatTemplate, name: Option<&str>, tools: Option<serde_json::Value>| {
            let options = RenderOptions { template: name.map(Into::into), tools, ..RenderOptions::default() };
            template.render(&[], &options).map_err(|error| error.to_string())
        };
        assert_eq!(render(&template, None, None).unwrap(), "plain");
        // As in transformers: no tools is `None`; an empty list of them is some.
        assert_eq!(render(&template, None, Some(json!([]))).unwrap(), "tools: 0");
        assert_eq!(render(&template, Some("default"), Some(json!([{}]))).unwrap(), "plain");
        assert_eq!(render(&template, Some("rag"), None).unwrap(), "rag");
        let broken = render(&template, Some("broken"), None).unwrap_err();
        assert!(broken.contains("chat template broken cannot be used"), "{broken}");
        let missing = render(&template, Some("thinking"), None).unwrap_err();
        assert!(missing.contains("no chat template \"thinking\"; it has broken, default, rag, tool_use"), "{missing}");
        files.chat_template = None;
        let no_default = ChatTemplate::from_files(&files).unwrap().unwrap();
        assert!(render(&no_default, None, None).unwrap_err().contains("no chat template \"default\""));
        files.named_templates.clear();
        assert!(ChatTemplate::from_files(&files).is_none());
        files.chat_template = Some("{% nonsense %}".into());
        assert!(ChatTemplate::from_files(&files).unwrap().is_err());
    }

    #[test]
    fn generation_blocks_print_their_contents() {
        let marked = "{% for m in messages %}\n  {%- generation -%} {{ m.content }} {% endgeneration %}\n{% endfor %}|";
        let plain = "{% for m in messages %}\n  {%- if true -%} {{ m.content }} {% endif %}\n{% endfor %}|";
        assert_eq!(render(marked, json!({})).unwrap(), render(plain, json!({})).unwrap());
        assert_eq!(render("{# {% #}{%generation%}x{%endgeneration%}{{ '{%' }}", json!({})).unwrap(), "x{%");
    }

    #[test]
    fn loop_controls_dates_and_methods_work() {
        assert_eq!(
            render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", json!({}))
                .unwrap(),
            "01"
        );
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", json!({})).unwrap(), "02 Jan 1970");
        assert_eq!(
            render("{{ ' x '.lstrip() + 'a-b'.replace('-', '+') + v.get('k', 'd') }}", json!({"v": {}})).unwrap(),
            "x a+bd"
        );
        assert_eq!(
            render("{% for k, v in o.items() %}{{ k }}={{ v }};{% endfor %}", json!({"o": {"b": 1, "a": 2}})).unwrap(),
            "b=1;a=2;"
        );
    }

    #[test]
    fn failures_say_whose_they_are() {
        let syntax = render("line\n{% nonsense %}", json!({})).unwrap_err();
        assert_eq!(syntax.kind(), crate::error::ErrorKind::Load);
        assert!(syntax.to_string().contains("template:2)"), "{syntax}");
        let raised =
            render("{% macro m() %}{{ raise_exception('No.') }}{% endmacro %}{{ m() }}", json!({})).unwrap_err();
        assert_eq!(raised.to_string(), "the chat template refuses these messages: No.");
        let wrong = render("{{ messages[0].missing.deeper }}", json!({})).unwrap_err();
        assert!(wrong.to_string().starts_with("the chat template cannot render"), "{wrong}");
    }
}
