"""Pages: one self-contained HTML file with charts as SVG (extra ``report``)."""
