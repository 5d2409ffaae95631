//! The pages of the manual, parsed as mdBook parses them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The directory of the pages.
const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");

/// Languages of blocks, so that a misspelt one does not go untested.
const LANGUAGES: [&str; 9] = ["console", "csv", "ini", "json", "python", "sh", "text", "toml", "yaml"];

/// A page, and what the tests look at.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Relative to the directory of the pages.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
    /// Code within a line.
    pub(crate) codes: Vec<Located>,
    /// Destinations of links.
    pub(crate) links: Vec<Located>,
    /// What a link to this page can name after `#`.
    pub(crate) anchors: Vec<String>,
}

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) language: String,
    /// Further words of the info string.
    pub(crate) marks: Vec<String>,
    /// The number of its first line of text.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A text with its line.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Block {
    pub(crate) fn has(&self, mark: &str) -> bool {
        self.marks.iter().any(|found| found == mark)
    }

    /// The file to which it is written.
    pub(crate) fn file(&self) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix("file="))
    }
}

/// The directory of the pages.
pub(crate) fn directory() -> &'static Path {
    Path::new(PAGES)
}

/// All pages, `SUMMARY.md` included, in the order of their paths.
pub(crate) fn all() -> Vec<Page> {
    let mut paths = Vec::new();
    let mut directories = vec![directory().to_owned()];
    while let Some(below) = directories.pop() {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Page {
    let text = fs::read_to_string(path).unwrap();
    let page = Page { path: path.strip_prefix(directory()).unwrap().to_owned(), ..Page::default() };
    parse(page, text)
}

fn parse(mut page: Page, text: String) -> Page {
    let line_of = |range: &Range<usize>| text[..range.start].matches('\n').count() + 1;
    let mut headings = BTreeMap::new();
    let mut heading: Option<String> = None;
    let mut block: Option<Block> = None;
    for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let line = line_of(&range) + 1;
                let known = LANGUAGES.contains(&language.as_str());
                assert!(known, "{}:{line}: no language `{language}`", page.path.display());
                block = Some(Block { language, marks: words.collect(), line, text: String::new() });
            }
            Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                page.anchors.push(anchor(&heading.take().unwrap(), &mut headings));
            }
            Event::Start(Tag::Link { dest_url, .. }) => {
                page.links.push(Located { line: line_of(&range), text: dest_url.into_string() });
            }
            Event::Code(code) => {
                heading.iter_mut().for_each(|heading| heading.push_str(&code));
                page.codes.push(Located { line: line_of(&range), text: code.into_string() });
            }
            Event::Text(part) => {
                heading.iter_mut().for_each(|heading| heading.push_str(&part));
                block.iter_mut().for_each(|block| block.text.push_str(&part));
            }
            Event::Html(html) | Event::InlineHtml(html) => page.anchors.extend(named(&html)),
            _ => {}
        }
    }
    page.text = text;
    page
}

/// The id that mdBook gives to a heading.
fn anchor(heading: &str, seen: &mut BTreeMap<String, u32>) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    let id: String = kept.collect();
    let count = seen.entry(id.clone()).or_default();
    *count += 1;
    match *count {
        1 => id,
        more => format!("{id}-{}", more - 1),
    }
}

/// The id of `<a id="ID">`.
fn named(html: &str) -> Option<String> {
    let (id, _) = html.trim().strip_prefix("<a id=\"")?.split_once('"')?;
    Some(id.to_owned())
}

#[test]
fn pages_are_parsed() {
    let text =
        "# A b\n\n[x](y.md#z) `c`\n\n## A b\n\n<a id=\"d.e\"></a>\n\n```toml job file=j.toml\nk = 1\n```\n";
    let page = parse(Page::default(), text.to_owned());
    assert_eq!(page.anchors, ["a-b", "a-b-1", "d.e"]);
    assert_eq!((page.links[0].line, page.links[0].text.as_str()), (3, "y.md#z"));
    assert_eq!(page.codes[0].text, "c");
    let block = &page.blocks[0];
    assert_eq!((block.language.as_str(), block.line, block.text.as_str()), ("toml", 10, "k = 1\n"));
    assert!(block.has("job") && !block.has("daemon") && block.file() == Some("j.toml"));
}
