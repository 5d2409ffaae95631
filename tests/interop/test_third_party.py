"""The list of linked crates in the packages: complete, each text once, in a fixed order.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_third_party.py -v
"""

import importlib.util
import itertools
import unittest

from support import ROOT

SPEC = importlib.util.spec_from_file_location("third_party", ROOT / "packaging" / "third_party.py")
third_party = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(third_party)
Crate = third_party.Crate


class ThirdParty(unittest.TestCase):
    def test_equal_texts_appear_once_in_an_order_that_names_decide(self):
        crates = [
            Crate("b", "1.10.0", "MIT", {"LICENSE": "Take it.\r\nNo warranty.\n"}),
            Crate("b", "1.9.0", "MIT/Apache-2.0", {"LICENSE-MIT": "  Take it.\n  No warranty."}),
            Crate("a", "2.0.0", "ISC", {"COPYING": "Other"}),
        ]
        document = third_party.document(crates, "notices of the library", "Title")
        self.assertEqual(document.count("Take it."), 1)
        for ordered in itertools.permutations(crates):
            self.assertEqual(third_party.document(list(ordered), "notices of the library", "Title"), document)
        self.assertIn("a 2.0.0: ISC [1]\nb 1.9.0: Apache-2.0 OR MIT [2]\nb 1.10.0: MIT [2]\n", document)
        self.assertTrue(document.endswith("notices of the library\n"))

    def test_missing_texts_and_needless_exceptions_are_errors(self):
        def with_text():
            return Crate("a", "1.0.0", "MIT", {"LICENSE": "Take it."})

        def without():
            return Crate("b", "1.0.0", "MIT", {})

        def unlicensed():
            return Crate("c", "1.0.0", "", {"README": "Take it."})

        third_party.add_texts_of_others(crates := [with_text(), without()], {"b": "a"})
        self.assertEqual(crates[1].texts, {"a/LICENSE": "Take it."})
        for crates, text_in, message in [
            ([with_text(), without()], {}, "b 1.0.0: no text of its licence, MIT"),
            ([with_text()], {"b": "a"}, "b: needs no text of a"),
            ([without()], {"b": "a"}, "a: not linked, but has the text of b"),
            ([unlicensed()], {}, "c 1.0.0: no licence"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(third_party.Missing, message):
                third_party.add_texts_of_others(crates, text_in)

    def test_the_expression_of_the_package_has_each_part_once(self):
        crates = [
            Crate("a", "1.0.0", "Apache-2.0 / MIT", {}),
            Crate("b", "1.0.0", "(MIT OR Apache-2.0) AND Unicode-3.0", {}),
            Crate("c", "1.0.0", "Apache-2.0", {}),
        ]
        expression = third_party.expression_of(crates, ["Apache-2.0", "CC-BY-4.0"])
        self.assertEqual(expression, "Apache-2.0 AND CC-BY-4.0 AND (Apache-2.0 OR MIT) AND Unicode-3.0")


if __name__ == "__main__":
    unittest.main()
