#![allow(clippy::unwrap_used)]

use super::*;

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.csv", "a.csv", "c.txt", ".hidden.csv", "sub/d.csv", "sub/deep/e.csv", "x[1].csv"] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, name).unwrap();
    }
    dir
}

async fn names(dir: &Path, patterns: &[&str]) -> Result<Vec<String>, Error> {
    let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
    Ok(list(&patterns, dir).await?.iter().map(|object| object.path().to_string()).collect())
}

#[tokio::test]
async fn globs_match_like_a_shell() {
    let dir = tree();
    let at = dir.path();
    assert_eq!(names(at, &["[ab].csv"]).await.unwrap(), ["a.csv", "b.csv"]);
    assert_eq!(names(at, &["*.{csv,txt}"]).await.unwrap(), ["a.csv", "b.csv", "c.txt", "x[1].csv"]);
    assert_eq!(names(at, &["sub/*.csv"]).await.unwrap(), ["sub/d.csv"]);
    assert_eq!(names(at, &["sub/**/*.csv"]).await.unwrap(), ["sub/d.csv", "sub/deep/e.csv"]);
    assert_eq!(names(at, &["*/?.csv"]).await.unwrap(), ["sub/d.csv"]);
    assert_eq!(names(at, &[".h*"]).await.unwrap(), [".hidden.csv"]);
    assert_eq!(names(at, &["x\\[1\\].csv"]).await.unwrap(), ["x[1].csv"]);
}

#[tokio::test]
async fn a_listing_is_sorted_and_unique_for_any_order_of_patterns() {
    let dir = tree();
    let found = names(dir.path(), &["c.txt", "./sub/../b.csv", "[ab].csv", "a.csv"]).await.unwrap();
    assert_eq!(found, ["a.csv", "./sub/../b.csv", "c.txt"]);
    let absolute = dir.path().join("*.txt").display().to_string();
    let found = names(Path::new("/"), &[&format!("file://{absolute}")]).await.unwrap();
    assert_eq!(found, [dir.path().join("c.txt").display().to_string()]);
}

#[tokio::test]
async fn missing_files_have_distinct_errors() {
    let dir = tree();
    let error = |pattern: &'static str| {
        let at = dir.path().to_owned();
        async move { names(&at, &[pattern]).await.unwrap_err() }
    };
    assert!(matches!(error("none.csv").await, Error::NotFound { path, base: Some(_) } if path == "none.csv"));
    assert!(matches!(error("none/*.csv").await, Error::EmptyGlob { .. }));
    assert!(matches!(error("*.parquet").await, Error::EmptyGlob { .. }));
    let message = error("none.csv").await.to_string();
    assert_eq!(message, format!("none.csv: no such file in {}", dir.path().display()));
    assert_eq!(error("/none.csv").await.to_string(), "/none.csv: no such file");
    assert!(error("sub").await.to_string().contains("is a directory"));
    assert!(matches!(error("[a").await, Error::BadPattern { .. }));
    let message = error("ftp://bucket/*").await.to_string();
    assert_eq!(message, "ftp://bucket/*: unsupported storage scheme ftp://");
}

#[tokio::test]
async fn a_file_changed_after_listing_is_rejected() {
    let dir = tree();
    let objects = list(&["a.csv".to_owned(), "b.csv".to_owned()], dir.path()).await.unwrap();
    assert_eq!(objects[0].read(1..5).await.unwrap(), ".csv");
    std::fs::write(dir.path().join("a.csv"), "other bytes").unwrap();
    std::fs::remove_file(dir.path().join("b.csv")).unwrap();
    for object in &objects {
        assert!(matches!(object.read(0..1).await, Err(Error::Changed { path }) if path == **object.path()));
    }
}
