//! Links lead somewhere, and every page is in the table of contents.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::page::{self, Page};

const CONTENTS: &str = "SUMMARY.md";

#[test]
fn the_table_of_contents_has_every_page_once() {
    let pages = page::all();
    let (contents, pages): (Vec<Page>, Vec<Page>) =
        pages.into_iter().partition(|page| page.path == Path::new(CONTENTS));
    let listed: Vec<PathBuf> = contents[0].links.iter().map(|link| PathBuf::from(&link.text)).collect();
    let unique: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice");
    assert_eq!(unique, pages.into_iter().map(|page| page.path).collect());
    assert!(unique.len() > 4, "{unique:?}");
}

#[test]
fn links_resolve() {
    let pages = page::all();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in &pages {
        for link in page.links.iter().filter(|link| !is_external(&link.text)) {
            if let Err(reason) = resolve(&pages, page, &link.text) {
                wrong.push(format!("{}:{}: {}: {reason}", page.path.display(), link.line, link.text));
            }
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "only {seen} links were found");
}

fn is_external(link: &str) -> bool {
    link.starts_with("https://") || link.starts_with("mailto:")
}

/// Resolves a link within the manual. A rendered manual has no other files, so links to them are addresses.
fn resolve(pages: &[Page], from: &Page, link: &str) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => from,
        _ => {
            let path = normal(&from.path.with_file_name(path));
            pages.iter().find(|page| page.path == path).ok_or("no such page")?
        }
    };
    let exists = anchor.is_empty() || target.anchors.iter().any(|known| known == anchor);
    exists.then_some(()).ok_or("no such heading")
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
        path
    })
}

#[test]
fn a_wrong_link_is_found() {
    let page = |path: &str| Page { path: path.into(), anchors: vec!["a".into()], ..Page::default() };
    let pages = [page("one.md"), page("below/two.md")];
    for link in ["below/two.md", "below/two.md#a", "#a"] {
        assert_eq!(resolve(&pages, &pages[0], link), Ok(()), "{link}");
    }
    assert_eq!(resolve(&pages, &pages[1], "../one.md#a"), Ok(()));
    assert_eq!(resolve(&pages, &pages[1], "one.md"), Err("no such page"));
    assert_eq!(resolve(&pages, &pages[0], "#b"), Err("no such heading"));
}
