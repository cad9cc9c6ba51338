"""`flatout web`: what flatout knows, as pages in a browser.

Pages and addresses
-------------------

- a page is a function of a `PageRequest` that returns a `WebPage`: a template's name and its data.
  The same data is the page as JSON, at the address with `.json` after it
- `/home`, `/doctor`, `/live`, `/runs`, `/runs/RUN`, `/compare?run=A&run=B` ...;
  they stay as they are, so that they can be kept as bookmarks
- `/sweeps`, `/sweeps/SWEEP`
- `/bench`, `/bench/compare?file=A&file=B`: results by their ids, `bench/run-mlp`;
  `/profiles?of=digits`
- a form is sent to the address of its page: a refused one is then shown again as it was filled in
- `/chart.json?run=A&panel=loss&from=0&to=99`: the curves of a chart, thinned
- `/runs/RUN/live`: server-sent events, when a run has new lines

Data
----

- pages are read-only functions of the faces of the packages below (`runs`, `doctor`, ...), called
  in threads. `PageContext` holds what outlives a request: `RunCache` reads a run again only where
  one of its files has changed; what takes seconds (examining the machine, asking the cluster,
  indexing samples, reading all runs) is done in the background by `background_query.py`. What
  computes there pauses often: a page that looks at a thousand files would wait for it after each
- a page reads a part of long metrics, and a list some of the runs that are not known
  (`run_cache.py: ReadLimits`); what is missing has `data-unread`
- curves come from `system/store/metric_index.py`, which makes millions of lines quick to draw;
  those of the machine from `sample_index.py`, an index for each day
- what cannot be read becomes a Finding in its own section (`page.py: section`); the rest of the
  page is shown
- without JavaScript a page is complete; with it, charts zoom and parts with `data-live` are
  replaced by those of the same page, fetched again
- texts of flatout's own are in English: `parts.english`, or `lang="en"`

Copies
------

`export.py` writes the pages of runs into a folder (`flatout web --export`). In templates,
`copied_at` is then not None: scripts, forms and what is private are left out. Links to pages that
are not in the copy lose their address.

Security
--------

- `gate.py` is in front of every address: name in the Host header, token, headers of the answer
- a run's id in an address is looked up among the runs that exist, and so are the names of a sweep
  and of an experiment; they never become a path
- everything in a template is escaped; scripts and styles come from `static/` alone
  (Content-Security-Policy), so no `style=` and no `onclick=` in a template
- a change is a POST by `application.py: change`: the same origin, the form's token, and not
  with --read-only. `api.py` demands a token also on loopback, unless --read-only
- a change of the machine runs in the background (`machine_change.py`); its plan is looked up among
  those of the last examination, and never comes from the browser

To add a page
-------------

1. `web/<name>_page.py` with a function from PageRequest to WebPage; `templates/<name>.html` extends
   `layout.html`, and has one `<h1>`. A number in the template is a number in the data.
2. `application.py: routes`: a line. With a change: `change(...)` and a form with `form_token()`.
3. `layout.html`: its name, if it is one of the main pages.
4. Every text of ours in all of `texts/*.toml`; tests/unit/test_web_texts.py compares them. Errors
   and findings stay as they are.
5. tests/unit/test_web_pages.py: a line in PAGES; its main journey in
   tests/integration/test_web_browser.py. docs/web.md: a section.
"""
